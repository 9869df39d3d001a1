"""Clip gradients by the norm of all of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.step._require_mirrored import require_mirrored
from replicax.values._sparse import dense


def clip_by_global_norm(gradients: Any, max_norm: Any) -> tuple[Any, jax.Array]:
    """Scale gradients down so that their norm, over all leaves, is at most `max_norm`.

    Clip what the replicas have combined: the norm of one replica's gradient is not that of the
    global batch, and the mean of clipped gradients is not the clipped mean.

    Context: any. Collective: no in a compiled step; in the eager runner, where it compares bits.

    Args:
        gradients: A tree of floating-point arrays, equal on all replicas. Sparse rows
            (`rx.IndexedSlices`) become dense.
        max_norm: f32[], the largest norm, above zero.

    Returns:
        The clipped tree, and the norm before: f32[].

    Raises:
        VaryingWriteError: In replica context: the gradients may differ between replicas.
        InvalidArgumentError: `max_norm` is not above zero.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> clipped, norm = rx.clip_by_global_norm([jnp.array([3.0, 4.0])], 1.0)
        >>> print(clipped[0], norm)
        [0.6 0.8] 5.0
    """
    if not isinstance(max_norm, jax.core.Tracer) and not np.all(np.asarray(max_norm) > 0):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"rx.clip_by_global_norm: `max_norm` = {max_norm!r} is not above zero.",
                fix="Pass the largest norm that a step may have, such as 1.0.",
            )
        )
    gradients = jax.tree.map(jnp.asarray, dense(gradients))
    gradients = require_mirrored(gradients, "rx.clip_by_global_norm")
    clipped: tuple[Any, jax.Array] = _clipped(gradients, max_norm)
    return clipped


@jax.jit
def _clipped(gradients: Any, max_norm: Any) -> tuple[Any, jax.Array]:
    norm = global_norm(gradients)
    scale = max_norm / jnp.maximum(norm, max_norm)
    return jax.tree.map(lambda x: (x * scale).astype(x.dtype), gradients), norm


def global_norm(tree: Any) -> jax.Array:
    """f32[], the square root of the sum of all squares; half precision is widened before."""
    squares = [
        jnp.sum(jnp.square(jnp.abs(x.astype(jnp.promote_types(x.dtype, jnp.float32)))))
        for x in jax.tree.leaves(tree)
    ]
    return jnp.sqrt(sum(squares, start=jnp.zeros((), jnp.float32)))
