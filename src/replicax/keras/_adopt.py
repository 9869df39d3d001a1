"""Models that were made outside of a strategy's scope."""

from __future__ import annotations

from typing import Any

from replicax import errors
from replicax.keras import _compat
from replicax.keras._checks import variables_of
from replicax.keras._distribution import distribution_of, strategy_of_variable
from replicax.values import current_frame
from replicax.values._workers import common_value


def strategy_for(model: Any) -> Any:
    """The strategy of the scope, or that in whose scope the model was made.

    Raises:
        ContextError: Neither is there.
    """
    frame = current_frame()
    if frame is not None and frame.strategy is not None:
        return frame.strategy
    for variable in variables_of(model):
        strategy = strategy_of_variable(variable)
        if strategy is not None:
            return strategy
    raise errors.ContextError(
        errors.describe(
            f"Model `{model.name}` belongs to no strategy.",
            why="It was made outside of every scope, and the call stands outside of every scope.",
            fix="Make and compile it under `with strategy.scope():`; or adopt it: `with "
            "strategy.scope(): rx.keras.adopt(model)`.",
        )
    )


def adopt(model: Any) -> Any:
    """Bring a Keras model, its optimizer and its metrics over to the replicas of the scope.

    Their values stay what they are; over several workers those of worker 0 count. What Keras
    compiled for the model before is dropped.

    Context: in `strategy.scope()`. Collective: yes, where the strategy spans processes.

    Args:
        model: A `keras.Model`, a layer, an optimizer or a metric.

    Returns:
        The same object.

    Raises:
        ContextError: Outside of every scope.

    Examples:
        >>> import keras
        >>> import replicax as rx
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        ...     _ = rx.keras.adopt(model)
        >>> len(model.weights[0].value.devices())
        2
    """
    frame = current_frame()
    if frame is None or frame.strategy is None or frame.access is not None:
        raise errors.ContextError(
            errors.describe(
                "rx.keras.adopt was called outside of every strategy's scope.",
                fix="Call it under `with strategy.scope():`, outside of steps.",
            )
        )
    strategy: Any = frame.strategy
    distribution, mesh = distribution_of(strategy), strategy.replica_mesh
    found = variables_of(model) if hasattr(model, "metrics_variables") else list(model.variables)
    for variable in found:
        array = _compat.array_of(variable)
        if array is not None:
            if mesh.spans_processes:
                array = common_value(mesh, variable.path, array)
            _compat.set_array(variable, mesh.place_mirrored(array))
        _compat.set_layout(variable, distribution.get_variable_layout(variable))
    for name in ("train_function", "test_function", "predict_function"):
        if hasattr(model, name):
            setattr(model, name, None)
    return model
