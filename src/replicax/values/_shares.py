"""One value from the copies of a sync-on-read variable, and copies from one value.

Whatever is written across replicas reads back bit for bit: no remainder of an integer is lost, and
the floating shares of a sum are cut so that adding them up rounds nothing. (XLA itself flushes
subnormal numbers and the sign of a zero when it adds.)
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from replicax.values._kinds import VariableAggregation

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def aggregate(copies: Any, aggregation: VariableAggregation) -> jax.Array:
    """Combine copies ``[num_replicas, ...]`` as SUM, MEAN or ONLY_FIRST_REPLICA says."""
    if aggregation is VariableAggregation.SUM:
        return jnp.sum(copies, axis=0, dtype=copies.dtype)
    if aggregation is VariableAggregation.MEAN:
        # A rounded sum of equal copies, divided, is not always the copy.
        equal = jnp.all(copies == copies[:1], axis=0)
        return jnp.where(equal, copies[0], jnp.mean(copies, axis=0))
    first: jax.Array = copies[0]
    return first


def copies_of(value: jax.Array, count: int, aggregation: VariableAggregation) -> jax.Array:
    """Make copies ``[count, ...]`` of which ``value`` is the aggregate."""
    if aggregation is VariableAggregation.SUM and count > 1:
        return _shares(value, count)
    return jnp.broadcast_to(value, (count, *value.shape))


def _shares(value: jax.Array, count: int) -> jax.Array:
    if jnp.issubdtype(value.dtype, jnp.integer):
        share = value // count
        rest = value - share * count
        first = jnp.arange(count).reshape((count,) + (1,) * value.ndim) < rest
        return share[None] + first.astype(value.dtype)
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        return jax.lax.complex(_shares(value.real, count), _shares(value.imag, count))
    equal = value / count
    # Not `equal * count == value`, which XLA takes to be true.
    halves = jnp.asarray(count & (count - 1) == 0)
    is_exact = halves & (jnp.abs(value) >= count * jnp.finfo(value.dtype).tiny)
    short = _shortened(equal, math.ceil(math.log2(count)) + 1)
    others = jnp.where(jnp.isfinite(value), jnp.where(is_exact, equal, short), 0)
    first_share = jnp.where(is_exact, equal, value - others * (count - 1))
    return jnp.concatenate([first_share[None], jnp.broadcast_to(others, (count - 1, *value.shape))])


def _shortened(value: jax.Array, bits: int) -> jax.Array:
    """Clear the last bits of the significand, so that small multiples are exact.

    With ``ceil(log2(n)) + 1`` bits cleared from ``x / n``, every partial sum of the shares is a
    multiple of the last place of ``x`` and no larger than ``x``, so none is rounded.
    """
    unsigned = _UNSIGNED[value.dtype.itemsize]
    pattern = jax.lax.bitcast_convert_type(value, unsigned)
    mask = jnp.array(~((1 << bits) - 1) & (2 ** (8 * value.dtype.itemsize) - 1), unsigned)
    return jax.lax.bitcast_convert_type(pattern & mask, value.dtype)
