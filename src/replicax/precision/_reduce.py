"""Reductions of half-precision values that travel in float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax.collectives import CommunicationOptions, ReduceOp
from replicax.step import ReplicaContext


def all_reduce_in_float32(
    context: ReplicaContext,
    op: ReduceOp | str,
    tree: Any,
    options: CommunicationOptions | None = None,
    *,
    keep_float32: bool = False,
) -> Any:
    """Combine like `context.all_reduce`, with half-precision leaves as float32 on the way.

    A sum of float16 values over the replicas may be infinite although the mean is not, and each
    partial sum is rounded. It costs twice the bytes.

    Context: replica. Collective: yes.

    Args:
        context: `rx.get_replica_context()`.
        op: `"sum"`, `"mean"` or a `ReduceOp`.
        tree: A tree of arrays or numbers.
        options: How the values travel.
        keep_float32: Whether the results stay float32.

    Returns:
        The tree, mirrored, in its own dtypes unless `keep_float32`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> def replica_fn():
        ...     ctx = rx.get_replica_context()
        ...     return rx.precision.all_reduce_in_float32(ctx, "mean", jnp.float16(6e4))
        >>> print(strategy.run(replica_fn))
        6e+04
    """
    tree = jax.tree.map(jnp.asarray, tree)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32) if _is_half(x) else x, tree)
    combined = context.all_reduce(op, wide, options)
    if keep_float32:
        return combined
    return jax.tree.map(lambda x, y: y.astype(x.dtype) if _is_half(x) else y, tree, combined)


def _is_half(array: jax.Array) -> bool:
    return bool(array.dtype in (jnp.float16, jnp.bfloat16))
