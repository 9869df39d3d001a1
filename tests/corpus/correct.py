"""Correct training steps: what their entries are made of, and the list of all of them.

An entry is a function that makes a `Functional` or an `InPlace` step. It states what the numbers
must be: by default those of one device on the same global batches, to 1e-5 and 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

EVEN = (8, 8)
UNEVEN = (8, 8, 5)  # Four replicas get 2, 2, 1 and 0 rows of the last batch.
SHORT = (5, 5, 5)  # The same in every batch: one program to compile instead of two.


class Table(NamedTuple):
    """A batch of rows."""

    x: Any  # f32[B, 6]
    y: Any  # f32[B, 3]
    label: Any  # i32[B], below 3


class Images(NamedTuple):
    """A batch of images."""

    x: Any  # f32[B, 6, 6, 2]
    label: Any  # i32[B], below 3


class Text(NamedTuple):
    """A batch of token sequences."""

    tokens: Any  # i32[B, 5], below 7
    length: Any  # i32[B], from 1 to 5


def table(rng: np.random.Generator, rows: int) -> Table:
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    y = (x[:, :3] - 0.5 * x[:, 3:]).astype(np.float32)
    return Table(x, y, rng.integers(0, 3, rows).astype(np.int32))


def images(rng: np.random.Generator, rows: int) -> Images:
    x = rng.normal(size=(rows, 6, 6, 2)).astype(np.float32)
    return Images(x, rng.integers(0, 3, rows).astype(np.int32))


def text(rng: np.random.Generator, rows: int) -> Text:
    tokens = rng.integers(0, 7, (rows, 5)).astype(np.int32)
    return Text(tokens, rng.integers(1, 6, rows).astype(np.int32))


Batch = Callable[[np.random.Generator, int], Any]


@dataclass(frozen=True)
class Functional:
    """A step that threads its state by hand.

    Attributes:
        state: The state at the start, or a function that makes it for a strategy (None for the
            reference).
        replica_step: `(state, batch) -> (state, result)` on one replica.
        batch: Makes a global batch.
        reference: `(state, batch, num_replicas) -> (state, result)` in plain JAX on the global
            batch. None: `replica_step` itself, outside of every strategy.
    """

    state: Any
    replica_step: Callable[[Any, Any], tuple[Any, Any]]
    batch: Batch = table
    reference: Callable[[Any, Any, int], tuple[Any, Any]] | None = None

    def start(self, strategy: Any) -> Any:
        state = self.state(strategy) if callable(self.state) else self.state
        return jax.tree.map(jnp.array, state)


@dataclass(frozen=True)
class InPlace:
    """A step on variables. Reference: the same code on `rx.OneDeviceStrategy`.

    Attributes:
        make: From a strategy (in its scope) the step of a batch, and its variables.
        batch: Makes a global batch.
    """

    make: Callable[[Any], tuple[Callable[[Any], Any], list[rx.Variable]]]
    batch: Batch = table


@dataclass(frozen=True)
class Entry:
    """One correct step of the corpus."""

    name: str
    make: Callable[[], Functional | InPlace]
    rows: tuple[int, ...]
    replicas: int


ENTRIES: list[Entry] = []


def correct(rows: tuple[int, ...] = UNEVEN, replicas: int = 4) -> Callable[[Any], Any]:
    """Put a step on the list, with the rows of its global batches."""

    def note(make: Any) -> Any:
        ENTRIES.append(Entry(make.__name__, make, rows, replicas))
        return make

    return note


def weights(**shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    """Start values, the same each time."""
    rng = np.random.default_rng(7)
    return {
        name: jnp.asarray(0.4 * rng.normal(size=shape), jnp.float32)
        for name, shape in shapes.items()
    }


def training(
    per_row: Callable[[Any, Any], jax.Array],
    params: Any,
    optimizer: optax.GradientTransformation | None = None,
    batch: Batch = table,
) -> Functional:
    """The usual step: gradient of the mean of `per_row(params, batch)`, f32[B], all-reduced."""
    optimizer = optimizer or optax.sgd(0.1)

    def replica_step(state, batch):
        params, slots = state
        ctx = rx.get_replica_context()
        loss, grads = jax.value_and_grad(lambda p: ctx.global_mean(per_row(p, batch)))(params)
        grads = ctx.all_reduce("mean", grads)
        updates, slots = optimizer.update(grads, slots, params)
        return (optax.apply_updates(params, updates), slots), loss

    return Functional((params, optimizer.init(params)), replica_step, batch)


def squares(prediction: jax.Array, batch: Table) -> jax.Array:
    """f32[B], squared error of each row."""
    return jnp.sum((prediction - batch.y) ** 2, axis=-1)


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """f32[B]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def mlp(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def mlp_weights() -> dict[str, jax.Array]:
    return weights(w1=(6, 8), b1=(8,), w2=(8, 3), b2=(3,))


def mlp_squares(params: Any, batch: Table) -> jax.Array:
    return squares(mlp(params, batch.x), batch)
