"""Sums of which each replica gets a part, where XLA's own reduce-scatter is not what is wanted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._wire import narrow_scatter


def scatter_narrow(
    x: jax.Array, axis: int, wire: str, axis_name: str, num_replicas: int
) -> jax.Array:
    """The replica's part of the sum, along an axis."""
    rows, part = _parts(x, axis, num_replicas)
    return jnp.moveaxis(narrow_scatter(rows, wire, axis_name).reshape(part), 0, axis)


def scatter_over_gloo(x: jax.Array, axis: int, axis_name: str, num_replicas: int) -> jax.Array:
    """The same without Gloo's own reduce-scatter.

    For the gradients of a small transformer (14 MB) between two processes that one took 56 ms, the
    exchange of parts 18 ms as an all-to-all and 10 ms as a permutation, the all-reduce 28 ms (the
    least of 25 turns on a busy machine of two cores).
    """
    rows, part = _parts(x, axis, num_replicas)
    if num_replicas == 2:  # noqa: PLR2004 - one message each way
        own = lax.axis_index(axis_name)
        other = lax.dynamic_index_in_dim(rows, 1 - own, keepdims=False)
        received = lax.ppermute(other, axis_name, [(0, 1), (1, 0)])
        total = lax.dynamic_index_in_dim(rows, own, keepdims=False) + received
    else:
        total = lax.all_to_all(rows, axis_name, 0, 0, tiled=True).sum(0, dtype=x.dtype)
    return jnp.moveaxis(total.reshape(part), 0, axis)


def _parts(x: jax.Array, axis: int, count: int) -> tuple[jax.Array, tuple[int, ...]]:
    """The parts along an axis as rows `[count, L]`, and the shape of one with the axis in front."""
    front = jnp.moveaxis(x, axis, 0)
    return front.reshape(count, -1), (front.shape[0] // count, *front.shape[1:])
