"""How the tests of the row pass read a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.step._row_proof import (
    Dirty,
    Filled,
    Input,
    Known,
    Mark,
    Parts,
    State,
    Unknown,
    read_rows,
)

REPLICAS = 2
ROWS = 4
WIDTH = 3


class Replica:
    """What a function under test sees: rows with padding, and which of them are real.

    Attributes:
        x: f32[4, 3], rows with padding.
        y: i32[4], labels below 3, with padding.
        w: f32[3, 3], mirrored.
        own: f32[3], another value of each replica.
        real: i32[], the number of real rows.
        mask: bool[4], which rows are real.
    """

    def __init__(self, x: Any, y: Any, w: Any, own: Any, real: Any) -> None:
        self.x, self.y, self.w, self.own, self.real = x, y, w, own, real
        self.mask = jnp.arange(ROWS) < real

    def masked(self, value: Any, fill: float = 0.0) -> Any:
        """The value, filled at padded rows of axis 0."""
        return jnp.where(self.mask.reshape(ROWS, *[1] * (value.ndim - 1)), value, fill)


INPUTS = [Input.PADDED, Input.PADDED, Input.MIRRORED, Input.VARYING, Input.COUNT]


def read(fn: Callable[[Replica], Any], rows: int = ROWS) -> list[State]:
    """States of the results of a function of a `Replica`."""
    shapes = [(rows, WIDTH), (rows,), (WIDTH, WIDTH), (WIDTH,), ()]
    dtypes = [np.float32, np.int32, np.float32, np.float32, np.int32]
    examples = [np.ones(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

    def flat(*args: Any) -> Any:
        replica = Replica(*args)
        replica.mask = jnp.arange(rows) < replica.real
        return fn(replica)

    program = jax.make_jaxpr(flat, axis_env=[("replica", REPLICAS)])(*examples)
    return read_rows(
        program,
        INPUTS,
        axis_name="replica",
        num_replicas=REPLICAS,
        capacity=rows,
        is_strict=True,
    )


def in_words(state: State) -> str:
    """`clean`, `dirty`, `unknown`, `parts`, or the axes: `0: rows, 1: filled with 0`."""
    match state:
        case Dirty():
            return "dirty"
        case Unknown():
            return "unknown"
        case Parts():
            return "parts"
    assert isinstance(state, Known)
    words = []
    for axis, status in state.axes:
        word = status.value if isinstance(status, Mark) else "filled"
        if isinstance(status, Filled) and status.value is not None:
            word += f" with {status.value + 0.0:g}"  # no -0
        words.append(f"{axis}: {word}")
    return ", ".join(words) or "clean"


@pytest.fixture
def words() -> Callable[..., str]:
    """`words(fn)`: the state of the result of a function of a `Replica`."""

    def of(fn: Callable[[Replica], Any], **options: int) -> str:
        return "; ".join(map(in_words, read(fn, **options)))

    return of


@pytest.fixture
def states() -> Callable[..., list[State]]:
    return read
