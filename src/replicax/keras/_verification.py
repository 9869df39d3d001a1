"""How `rx.verify` takes steps of `fit`, on the replicas and on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras
import numpy as np

from replicax import errors
from replicax.keras import _compat
from replicax.keras._checks import variables_of
from replicax.keras._distribution import _MADE, distribution_of
from replicax.keras._fit import fit
from replicax.keras._lifted import lift
from replicax.values import PerReplica, Variable
from replicax.verification._models import register_models

_FUNCTIONS = ("train_function", "test_function", "predict_function")


class _Models:
    """Keras models that are compiled for `fit`."""

    def is_model(self, value: Any) -> bool:
        return isinstance(value, keras.Model)

    def step_of(self, model: Any) -> Callable[[Any], Any]:
        """One call of `fit` with one global batch: the global view takes any number of rows."""
        if not getattr(model, "compiled", False):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"Model `{model.name}` was given to rx.verify as a step, and is not compiled.",
                    fix="Call `model.compile(...)` under `with strategy.scope():`, or pass the "
                    "training step of your own loop.",
                )
            )

        def step(batch: Any) -> dict[str, Any]:
            x, y, weights = keras.utils.unpack_x_y_sample_weight(
                jax.tree.map(_rows, batch, is_leaf=lambda leaf: isinstance(leaf, PerReplica))
            )
            count = len(jax.tree.leaves(x)[0])
            history = fit(
                model, x, y, sample_weight=weights, batch_size=count, shuffle=False, verbose=0
            )
            return {name: np.float32(values[0]) for name, values in history.history.items()}

        step.__name__ = f"{model.name}.fit"
        return step

    def variables_of(self, model: Any) -> Sequence[Variable]:
        """The weights, the state of the optimizer, seeds and metrics."""
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
        return [lift(variable) for variable in variables_of(model)]

    @contextlib.contextmanager
    def on_one_device(self, model: Any, strategy: Any) -> Iterator[None]:
        """Keras asks a distribution of one device, and compiles its steps anew."""
        distribution = _MADE.pop(strategy, None)
        functions = {name: getattr(model, name, None) for name in _FUNCTIONS}
        for name in functions:
            setattr(model, name, None)
        layouts = [(v, _compat.layout_of(v)) for v in variables_of(model)]
        here = distribution_of(strategy)
        for variable, _ in layouts:
            _compat.set_layout(variable, here.get_variable_layout(variable))
        try:
            yield
        finally:
            for variable, layout in layouts:
                _compat.set_layout(variable, layout)
            for name, function in functions.items():
                setattr(model, name, function)
            _MADE.pop(strategy, None)
            if distribution is not None:
                _MADE[strategy] = distribution


def _rows(leaf: Any) -> Any:
    """The real rows of all replicas of this process, on the host."""
    if not isinstance(leaf, PerReplica):
        return leaf
    return np.concatenate([np.asarray(component) for component in leaf.values])


register_models(_Models())
