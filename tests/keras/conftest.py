"""Small models, their data, and how far two trainings are apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import replicax as rx

TOLERANCE = 1e-6


@dataclasses.dataclass
class Data:
    """Rows of inputs f32[N, 3], targets f32[N, 2], classes i32[N] and weights f32[N]."""

    x: Any
    y: Any
    classes: Any
    weights: Any


@pytest.fixture(scope="session")
def data() -> Data:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(11, 3)).astype(np.float32)
    return Data(
        x,
        rng.normal(size=(11, 2)).astype(np.float32),
        rng.integers(0, 2, 11).astype(np.int32),
        rng.uniform(0.5, 2, 11).astype(np.float32),
    )


@pytest.fixture(scope="session")
def strategy() -> rx.Strategy:
    return rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])


def compiled_model(*, kind: Any = None, **options: Any) -> Any:
    """A Keras model with the same weights each time."""
    import keras

    keras.utils.set_random_seed(7)
    kind = kind or keras.Sequential
    model = kind([keras.Input((3,)), keras.layers.Dense(2)])
    given = {"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", "metrics": ["mae"]}
    model.compile(**(given | options))
    return model


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Any]:
    return compiled_model


def state(model: Any) -> dict[str, Any]:
    variables = [*model.variables, *(model.optimizer.variables if model.optimizer else [])]
    return {f"{i} {v.path}": np.asarray(v.value) for i, v in enumerate(variables)}


@pytest.fixture(scope="session")
def apart() -> Callable[..., float]:
    """The largest difference of two models, histories, arrays or trees of such."""

    def difference(one: Any, other: Any) -> float:
        if hasattr(one, "layers"):
            first, second = state(one), state(other)
            assert len(first) == len(second)
            return max(
                difference(a, b) for a, b in zip(first.values(), second.values(), strict=True)
            )
        if hasattr(one, "history"):
            return difference(one.history, other.history)
        if isinstance(one, dict):
            assert one.keys() == other.keys()
            return max(difference(one[name], other[name]) for name in one)
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape
        return float(np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)), initial=0))

    return difference
