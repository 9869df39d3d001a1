"""The largest or smallest value of all replicas, in a mapped program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._reduce_op import ReduceOp


def extremum(op: ReduceOp, axis_name: str, x: jax.Array) -> jax.Array:
    """The elementwise extremum over the replicas. Context: replica. Collective: yes.

    The gradient goes to the replicas whose element won, in equal parts. NaN wins.

    Args:
        op: MAX or MIN.
        axis_name: Axis of the mapped program.
        x: `[...]`, with the same shape on every replica.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return _extremum(op, axis_name, x)
    return _differentiable_extremum(op, axis_name, x)


def _extremum(op: ReduceOp, axis_name: str, x: jax.Array) -> jax.Array:
    reducer: Callable[[jax.Array, str], jax.Array] = lax.pmax if op is ReduceOp.MAX else lax.pmin
    return reducer(x, axis_name)


# lax has no derivative of pmax and pmin. This one is that of `jnp.max` over the replicas.
@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _differentiable_extremum(op: ReduceOp, axis_name: str, x: jax.Array) -> jax.Array:
    """Compares floats as integers of the same order: transports disagree on NaN, integers win."""
    bits = 8 * x.dtype.itemsize
    integer = np.dtype(f"int{bits}")
    # The NaN that is beyond infinity in the direction of the op, so that it wins.
    nan = jnp.asarray(jnp.nan if op is ReduceOp.MAX else -jnp.nan, x.dtype)
    ordered = _swap_order(lax.bitcast_convert_type(jnp.where(jnp.isnan(x), nan, x), integer))
    best = _swap_order(_extremum(op, axis_name, ordered))
    return lax.bitcast_convert_type(best, x.dtype)


def _swap_order(bits: jax.Array) -> jax.Array:
    """Floats as integers of the same order, and back: negative floats count downwards."""
    magnitude = jnp.asarray(jnp.iinfo(bits.dtype).max, bits.dtype)
    return jnp.where(bits < 0, bits ^ magnitude, bits)


@_differentiable_extremum.defjvp
def _extremum_jvp(
    op: ReduceOp, axis_name: str, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x,), (tangent,) = primals, tangents
    best = _differentiable_extremum(op, axis_name, x)
    won = (x == best).astype(x.dtype)
    share = won / lax.psum(won, axis_name)
    return best, lax.psum(share * tangent, axis_name)
