"""Collectives of trees that hold sparse rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax import errors
from replicax.collectives import ReduceOp
from replicax.step._collective import Collective
from replicax.values import IndexedSlices
from replicax.values._sparse import is_sparse, require_additive, share_of_mean

Communicate = Callable[[Collective, Sequence[Any]], list[Any]]


def holds_sparse_rows(tree: Any) -> bool:
    """Whether there are sparse rows anywhere in a tree."""
    return any(is_sparse(leaf) for leaf in jax.tree.leaves(tree, is_leaf=is_sparse))


def reduce_with_sparse_rows(
    communicate: Communicate, collective: Collective, tree: Any, num_replicas: int
) -> Any:
    """All-reduce a tree: sparse rows are joined in replica order, the other leaves combined.

    Args:
        communicate: Runs one collective on a list of leaves.
        collective: An `all_reduce`.
        tree: The tree, the same on all replicas but for the number of rows.
        num_replicas: What a mean divides by.

    Raises:
        UnimplementedError: Another collective.
        InvalidArgumentError: MAX or MIN.
    """
    structure: Any
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_sparse)
    sparse = [leaf for leaf in leaves if is_sparse(leaf)]
    if collective.kind != "all_reduce":
        raise _not_for_sparse_rows(collective.kind, sparse[0])
    for leaf in sparse:
        require_additive(collective.op, leaf, "ctx.all_reduce")
    whole = jax.tree.structure(tree)  # With what is inside the sparse rows.
    results = iter(_joined(communicate, collective, sparse, whole, num_replicas))
    dense = [leaf for leaf in leaves if not is_sparse(leaf)]
    combined = iter(
        communicate(dataclasses.replace(collective, structure=whole), dense) if dense else []
    )
    return structure.unflatten([next(results if is_sparse(x) else combined) for x in leaves])


def _joined(
    communicate: Communicate,
    collective: Collective,
    sparse: Sequence[IndexedSlices],
    structure: Any,
    num_replicas: int,
) -> list[IndexedSlices]:
    values = [leaf.values for leaf in sparse]
    if collective.op is ReduceOp.MEAN:
        values = [share_of_mean(x, num_replicas) for x in values]
    gather = Collective(
        "all_gather",
        options=collective.options,
        structure=structure,
        joined_for=collective.op,
    )
    parts = communicate(gather, [*values, *(leaf.indices for leaf in sparse)])
    columns = zip(sparse, parts[: len(sparse)], parts[len(sparse) :], strict=True)
    return [IndexedSlices(rows, indices, leaf.dense_shape) for leaf, rows, indices in columns]


def _not_for_sparse_rows(kind: str, value: IndexedSlices) -> errors.UnimplementedError:
    if kind == "all_gather":
        fix = "`ctx.all_reduce('sum', slices)` joins the rows of all replicas in replica order."
    else:
        fix = (
            "Use `ctx.all_reduce('sum', slices)`, which joins the rows of all replicas, or pass "
            "the whole array: `slices.to_dense(rows)`."
        )
    return errors.UnimplementedError(
        errors.describe(f"`ctx.{kind}` was given sparse rows, {value!r}.", fix=fix)
    )
