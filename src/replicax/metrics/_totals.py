"""Sums that lose nothing: two float32 numbers, of which the second holds what the first rounds off.

A float32 count stops at 2**24, since adding 1 changes nothing there, and a long float32 sum drifts.
A pair holds 48 bits. It is kept in one variable `[2, ...]`, one copy a replica. Only adding up the
replicas, for a result or a checkpoint, rounds the larger parts to 24 bits: once, not at each step.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from replicax.metrics._jitted import jitted
from replicax.values import PerReplica, Variable, current_frame


def new_total(name: str, shape: tuple[int, ...]) -> Variable:
    """A total of zero, as the current scope keeps it."""
    return Variable(
        np.zeros((2, *shape), np.float32),  # NumPy's: it may be made while a step is traced
        trainable=False,
        name=name,
        synchronization="on_read",
        aggregation="sum",
    )


def clear(total: Variable) -> None:
    """Set a total to zero: all copies, or in replica context this replica's."""
    zeros = np.zeros(total.shape, np.float32)
    frame = current_frame()
    if total.strategy is None or (frame is not None and frame.sees_one_copy):
        total.assign(zeros)
    else:  # Copy by copy: nothing has to be shared out.
        total.assign(PerReplica([zeros] * total.strategy.replica_mesh.num_local_replicas))


def add_to(total: Variable, amount: jax.Array) -> None:
    """Add to a replica's copy of a total."""
    total.assign(_added(total.value, amount))


@jitted()
def _added(pair: jax.Array, amount: jax.Array) -> jax.Array:
    """The pair of a sum.

    What rounding takes off a floating sum is itself a floating number, and found exactly (Knuth,
    The Art of Computer Programming 2, 4.2.2, theorem B).
    """
    high, low = pair
    wide = high + amount
    added = wide - high
    low = low + ((high - (wide - added)) + (amount - added))
    sum_ = wide + jnp.where(jnp.isfinite(wide), low, 0.0)
    return jnp.stack([sum_, jnp.where(jnp.isfinite(sum_), low - (sum_ - wide), 0.0)])


@jitted()
def rounded(pair: jax.Array) -> jax.Array:
    """A total `[2, ...]` as one number each."""
    return pair[0] + pair[1]


@jitted()
def ratio(dividend: jax.Array, divisor: jax.Array) -> jax.Array:
    """Divide; 0.0 where the divisor is 0."""
    is_zero = divisor == 0
    return jnp.where(is_zero, 0.0, dividend / jnp.where(is_zero, 1.0, divisor))
