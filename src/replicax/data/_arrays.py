"""Rows of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from replicax import errors
from replicax.data._dataset import Dataset
from replicax.data._requests import Ids, Requests


def from_arrays(*arrays: Any) -> Dataset:
    """Rows of arrays: element i is row i of every array.

    Args:
        arrays: Arrays `[N, ...]`, or trees of them. Several make tuples, `(x, y)`.

    Raises:
        InvalidArgumentError: They do not have one number of rows, or there are none.
        ArgumentTypeError: A leaf is no array.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> dataset = rx.data.from_arrays({"x": np.ones((4, 2)), "y": np.arange(4)}).batch(3)
        >>> [batch["y"].tolist() for batch in dataset], dataset.row_ids(1).tolist()
        ([[0, 1, 2], [3]], [3])
    """
    tree = arrays[0] if len(arrays) == 1 else arrays
    return ArrayDataset(tree)


class ArrayDataset(Dataset):
    """Rows of a tree of arrays on the host."""

    def __init__(self, tree: Any) -> None:
        leaves, structure = jax.tree.flatten(tree)
        self._structure: Any = structure
        self._leaves = [_on_host(leaf) for leaf in leaves]
        lengths = {leaf.shape[0] if leaf.ndim else None for leaf in self._leaves}
        if len(lengths) != 1 or None in lengths:
            paths = jax.tree_util.tree_leaves_with_path(tree)
            shapes = [(f"arrays{jax.tree_util.keystr(at)}", np.shape(leaf)) for at, leaf in paths]
            raise errors.InvalidArgumentError(
                errors.describe(
                    "The arrays of a dataset do not have one number of rows."
                    if shapes
                    else "There are no arrays.",
                    table=errors.Table(("array", "shape"), shapes) if shapes else None,
                    fix="Pass arrays with one row an example on axis 0.",
                )
            )
        self._rows = int(self._leaves[0].shape[0])

    def __repr__(self) -> str:
        return f"from_arrays(<{self._rows} rows>)"

    @property
    def num_elements(self) -> int | None:
        return self._rows

    @property
    def has_indices(self) -> bool:
        return True

    @property
    def _gathers(self) -> bool:
        return True

    @property
    def _is_in_memory(self) -> bool:
        return True

    def _ids(self, indices: Ids, epochs: Ids) -> Ids | None:
        del epochs
        return indices

    def _gather(self, indices: Ids, epochs: Ids) -> Any:
        del epochs
        low = int(indices[0])
        if len(indices) and np.array_equal(indices, np.arange(low, low + len(indices))):
            # Rows side by side are copied at once: the user may write into a batch.
            picked = [leaf[low : low + len(indices)].copy() for leaf in self._leaves]
        else:
            picked = [leaf[indices] for leaf in self._leaves]
        return self._structure.unflatten(picked)

    def _stream(self, wanted: Requests) -> Iterator[Any]:
        for indices, _ in wanted:
            for index in indices.tolist():
                yield self._structure.unflatten([leaf[index] for leaf in self._leaves])


def _on_host(leaf: Any) -> np.ndarray[Any, Any]:
    if isinstance(leaf, jax.core.Tracer):
        raise errors.ContextError(
            errors.describe(
                f"A dataset inside `rx.function` or `jax.jit` holds a traced array, {leaf}.",
                why="Its rows have no values while the function is traced.",
                fix="Make the dataset outside and pass each batch to the step.",
            )
        )
    if not isinstance(leaf, (np.ndarray, jax.Array)):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`from_arrays` takes arrays, not {leaf!r:.80}.",
                fix="Make an array of it with `np.asarray`, or use `rx.data.from_iterable`.",
            )
        )
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise errors.ArgumentTypeError(
            errors.describe(
                "PRNG keys cannot be rows of a dataset.", fix="Pass `jax.random.key_data(keys)`."
            )
        )
    return np.asarray(leaf)
