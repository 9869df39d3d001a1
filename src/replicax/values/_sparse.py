"""Sparse rows in reductions: what is joined, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.collectives import ReduceOp
from replicax.values._distributed import PerReplica
from replicax.values._indexed_slices import IndexedSlices


def is_sparse(value: Any) -> bool:
    """Whether a tree function that treats sparse rows as a whole stops at ``value``."""
    return isinstance(value, IndexedSlices)


def dense(tree: Any) -> Any:
    """The tree with whole arrays instead of sparse rows."""
    return jax.tree.map(lambda x: x.to_dense() if is_sparse(x) else x, tree, is_leaf=is_sparse)


def map_values(fn: Callable[[Any], Any], tree: Any) -> Any:
    """``fn`` of each array and of the values of sparse rows, whose indices stay what they are."""

    def mapped(leaf: Any) -> Any:
        if not is_sparse(leaf):
            return fn(leaf)
        return IndexedSlices(fn(leaf.values), leaf.indices, leaf.dense_shape)

    return jax.tree.map(mapped, tree, is_leaf=is_sparse)


def share_of_mean(values: jax.Array, num_replicas: int) -> jax.Array:
    """What rows of one replica add to the mean over all; float32 or float64 for integers."""
    if jnp.issubdtype(values.dtype, jnp.inexact):
        return values / num_replicas
    wide = jnp.issubdtype(values.dtype, jnp.integer) and values.dtype.itemsize > 4  # noqa: PLR2004
    return values.astype(jnp.float64 if wide else jnp.float32) / num_replicas


def require_additive(op: ReduceOp, value: IndexedSlices, call: str) -> None:
    """Check that ``op`` has a meaning for sparse rows.

    Raises:
        InvalidArgumentError: It is MAX or MIN.
    """
    if op in {ReduceOp.SUM, ReduceOp.MEAN}:
        return
    raise errors.InvalidArgumentError(
        errors.describe(
            f"`{call}` with {op.name} was given {value!r}.",
            why="Rows that are left out stand for zeros, and joining the rows of all replicas "
            "adds them. That is no maximum and no minimum.",
            fix="Pass 'sum' or 'mean', or the whole array: `slices.to_dense(rows)`.",
        )
    )


def require_no_axis(value: IndexedSlices, axis: Any) -> None:
    """Check that a reduction of sparse rows combines no axes of them.

    Raises:
        InvalidArgumentError: It does.
    """
    if axis is None:
        return
    raise errors.InvalidArgumentError(
        errors.describe(
            f"`strategy.reduce` of {value!r} was given `axis` = {axis!r}.",
            why="The rows of all replicas are joined; there is no axis to combine.",
            fix="Pass `axis=None`, or reduce the rows themselves: `slices.values`.",
        )
    )


def require_known_lengths(part: PerReplica) -> None:
    """Check that rows of a per-replica value can be joined without padding.

    Raises:
        ContextError: They are padded, and it is not known where.
    """
    if not isinstance(part.rows, jax.core.Tracer):
        return
    raise errors.ContextError(
        errors.describe(
            f"Sparse rows from a padded batch, {part!r}, cannot be reduced in a compiled step.",
            why="The replicas hold different numbers of real rows, and in a compiled step these "
            "are not Python numbers.",
            fix="Join them in the replica function, with `ctx.all_reduce('sum', slices)`, where "
            "`ctx.example_mask` tells which rows are real; or call `strategy.reduce` outside of "
            "`rx.function`.",
        )
    )


def not_gathered(value: IndexedSlices) -> errors.InvalidArgumentError:
    """The error of `strategy.gather` of sparse rows."""
    return errors.InvalidArgumentError(
        errors.describe(
            f"`strategy.gather` was given {value!r}.",
            why="The rows of a sparse value are no rows of the array that it stands for.",
            fix="`strategy.reduce('sum', slices, axis=None)` joins the rows of all replicas in "
            "replica order.",
        )
    )
