"""Rows become batches, and batches pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax import errors


def stacked(rows: Sequence[Any]) -> Any:
    """Stack trees of one structure along a new first axis.

    Raises:
        StructureMismatchError: Two rows have different structures.
        InvalidArgumentError: Two rows have leaves of different shapes.
    """
    structure: Any
    first, structure = jax.tree.flatten(rows[0])
    columns: list[list[Any]] = [[leaf] for leaf in first]
    for number, row in enumerate(rows[1:], 1):
        leaves, found = jax.tree.flatten(row)
        if found != structure:
            raise _other_structure(number, structure, found)
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    return structure.unflatten(
        [_stacked_leaf(column, rows, place) for place, column in enumerate(columns)]
    )


def _stacked_leaf(leaves: list[Any], rows: Sequence[Any], place: int) -> Any:
    arrays = [np.asarray(leaf) for leaf in leaves]
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    path = jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(rows[0])[place][0])
    other = next(i for i, array in enumerate(arrays) if array.shape != arrays[0].shape)
    table = [(i, f"row{path}", arrays[i].dtype, arrays[i].shape) for i in (0, other)]
    raise errors.InvalidArgumentError(
        errors.describe(
            "Rows of different shapes cannot become one batch.",
            table=errors.Table(("row of the batch", "leaf", "dtype", "shape"), table),
            fix="Give all rows one shape before `.batch`: cut or pad them in a `.map`.",
        )
    )


def _other_structure(number: int, structure: Any, found: Any) -> errors.StructureMismatchError:
    return errors.StructureMismatchError(
        errors.describe(
            "Rows of different structures cannot become one batch.",
            table=errors.Table(
                ("row of the batch", "structure"), [(0, structure), (number, found)]
            ),
            fix="Give all rows the same keys and lengths before `.batch`, in a `.map`.",
        )
    )


def piece_bounds(rows: int, num_pieces: int, index: int) -> tuple[int, int]:
    """Where a contiguous piece of `ceil(rows / num_pieces)` rows begins and ends."""
    share = -(-rows // num_pieces)
    return min(index * share, rows), min((index + 1) * share, rows)


def piece_of(batch: Any, num_pieces: int, index: int) -> Any:
    """A contiguous piece of a batch, which may have no rows.

    Raises:
        InvalidArgumentError: The leaves do not have one number of rows.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(batch)]
    lengths = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
    if len(lengths) != 1 or None in lengths:
        paths = [
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch)
        ]
        table = [(f"batch{path}", leaf.shape) for path, leaf in zip(paths, leaves, strict=True)]
        raise errors.InvalidArgumentError(
            errors.describe(
                "A batch whose leaves do not have one number of rows cannot be sharded.",
                table=errors.Table(("leaf", "shape"), table),
                fix="Give all leaves one row an example on axis 0.",
            )
        )
    low, high = piece_bounds(leaves[0].shape[0], num_pieces, index)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[low:high], batch)
