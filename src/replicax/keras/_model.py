"""Models whose own `fit`, `evaluate` and `predict` run on the replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from replicax.keras import _fit


def _distributed(call: Callable[..., Any], stock: Any, names: tuple[str, ...]) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, **dict(zip(names, args, strict=False)), **kwargs)

    method.__name__ = stock.__name__
    method.__doc__ = stock.__doc__
    method._is_distributed = True  # type: ignore[attr-defined] # `_fit.stock` passes over it
    return method


class Distributed:
    """A mixin: Keras models that train on the replicas of the strategy they are made for.

    Put it before the Keras class: `class MyModel(rx.keras.Distributed, keras.Model)`. Then plain
    `model.fit(x, y)` is `rx.keras.fit(model, x, y)`, inside of the scope or outside.
    """

    fit = _distributed(
        _fit.fit,
        keras.Model.fit,
        (
            "x",
            "y",
            "batch_size",
            "epochs",
            "verbose",
            "callbacks",
            "validation_split",
            "validation_data",
            "shuffle",
            "class_weight",
            "sample_weight",
            "initial_epoch",
            "steps_per_epoch",
            "validation_steps",
            "validation_batch_size",
            "validation_freq",
        ),
    )
    evaluate = _distributed(
        _fit.evaluate,
        keras.Model.evaluate,
        ("x", "y", "batch_size", "verbose", "sample_weight", "steps", "callbacks", "return_dict"),
    )
    predict = _distributed(
        _fit.predict, keras.Model.predict, ("x", "batch_size", "verbose", "steps", "callbacks")
    )


@keras.saving.register_keras_serializable(package="replicax")
class Model(Distributed, keras.Model):  # type: ignore[misc] # Keras has no types
    """A `keras.Model` that trains on replicas by itself; see `Distributed`.

    Examples:
        >>> import keras
        >>> import numpy as np
        >>> import replicax as rx
        >>> with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        ...     inputs = keras.Input((1,))
        ...     model = rx.keras.Model(inputs, keras.layers.Dense(1)(inputs))
        >>> model.predict(np.ones((3, 1), "float32"), verbose=0).shape
        (3, 1)
    """


@keras.saving.register_keras_serializable(package="replicax")
class Sequential(Distributed, keras.Sequential):  # type: ignore[misc]
    """A `keras.Sequential` that trains on replicas by itself; see `Distributed`."""
