"""What input reads: elements in an order that can be opened anywhere and repeated.

`Elements` is the face of a `rx.data` dataset that input needs. Arrays and plain iterables get it
from the small classes here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any, Literal, Protocol

import jax
import numpy as np

from replicax import errors
from replicax.data import Dataset

RowIds = np.ndarray[Any, Any]


class Elements(Protocol):
    """Elements in an order that can be opened anywhere and repeated."""

    @property
    def num_elements(self) -> int | None:
        """Elements of one epoch, or None if unknown."""

    @property
    def batch_size(self) -> int | None:
        """Rows of a full element, or None if unknown."""

    @property
    def source_length(self) -> int | None:
        """Elements of the source before it was batched or cut, or None if unknown."""

    @property
    def files(self) -> tuple[str, ...] | None:
        """The files that are read, where they can be shared out."""

    @property
    def is_sharded(self) -> bool:
        """Whether this is a shard of something."""

    @property
    def shards_by_hint(self) -> bool:
        """Whether the chain says where it is to be cut."""

    def open(self, *, epoch: int = 0, start: int = 0) -> Iterator[Any]:
        """Elements `start`, `start + 1`, ... of an epoch."""

    def row_ids(self, element: int, *, epoch: int = 0) -> RowIds | None:
        """Positions in the source of the rows of one element, or None if unknown."""

    def sharded(self, num_shards: int, index: int, *, by: Literal["files", "rows", "hint"]) -> Any:
        """What one pipeline of several reads."""


class Distributed:
    """What holds batches that are shared out over replicas already."""


def refuse_distributed(dataset: Any) -> None:
    """Refuse to share out what is shared out already.

    Raises:
        InvalidArgumentError: It is.
    """
    if isinstance(dataset, Distributed):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"The dataset is distributed already: {dataset!r}",
                why="Sharing it out twice would lose rows.",
                fix="Iterate it as it is.",
            )
        )


class Plain:
    """Elements that are no shard and are not cut by themselves.

    Attributes:
        is_once: Whether the elements can be read only once.
    """

    is_once = False
    batch_size: int | None = None
    files: tuple[str, ...] | None = None
    is_sharded = False
    shards_by_hint = False

    @property
    def num_elements(self) -> int | None:
        """Elements of one epoch, or None if unknown."""
        return None

    @property
    def source_length(self) -> int | None:
        """The same, where nothing is batched or cut."""
        return self.num_elements

    def row_ids(self, element: int, *, epoch: int = 0) -> RowIds | None:
        del element, epoch
        return None

    def num_rows(self, element: int) -> int | None:
        """Rows of one element, where that is known without reading anything."""
        del element
        return None

    def sharded(self, num_shards: int, index: int, *, by: str) -> Any:
        raise errors.UnimplementedError(
            errors.describe(
                f"A {type(self).__name__} cannot be cut into {num_shards} shards by {by}, of which "
                f"this were number {index}."
            )
        )


class ArrayBatches(Plain):
    """A tree of arrays ``[N, ...]``, cut into batches.

    Args:
        arrays: Host arrays with one number of rows.
        num_rows: That number, `N`.
        batch_size: Rows of a full batch.
    """

    def __init__(self, arrays: Any, num_rows: int, batch_size: int) -> None:
        self._arrays, self._num_rows, self.batch_size = arrays, num_rows, batch_size

    @property
    def num_elements(self) -> int:
        """Number of batches, the last of which may be short."""
        return -(-self._num_rows // self._size)

    @property
    def source_length(self) -> int:
        """Number of rows."""
        return self._num_rows

    @property
    def _size(self) -> int:
        return self.batch_size or 1

    def open(self, *, epoch: int = 0, start: int = 0) -> Iterator[Any]:
        """Batches from `start` on; the same in every epoch."""
        del epoch
        structure: Any
        leaves, structure = jax.tree.flatten(self._arrays)
        for element in range(start, self.num_elements):
            first = element * self._size
            rows = slice(first, first + self._size)
            yield structure.unflatten([leaf[rows] for leaf in leaves])

    def row_ids(self, element: int, *, epoch: int = 0) -> RowIds:
        """The rows of a batch by their places in the arrays."""
        del epoch
        first = element * self._size
        return np.arange(first, min(first + self._size, self._num_rows))


class IterableBatches(Plain):
    """Any iterable of batches that starts anew each time."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    @property
    def num_elements(self) -> int | None:
        """Number of batches, if the iterable has a length."""
        return len(self._batches) if isinstance(self._batches, Sized) else None

    def open(self, *, epoch: int = 0, start: int = 0) -> Iterator[Any]:
        """The batches after the first `start`, which are read and left out."""
        del epoch
        batches = self._batches
        if start and isinstance(batches, (list, tuple)):
            return iter(batches[start:])
        return islice(batches, start, None)

    def num_rows(self, element: int) -> int | None:
        """Rows of a batch in a list."""
        if not isinstance(self._batches, (list, tuple)):
            return None
        leaves = jax.tree.leaves(self._batches[element])
        return int(np.shape(leaves[0])[0]) if leaves and np.ndim(leaves[0]) else None


class OnceBatches(Plain):
    """An iterator of batches: what was taken from it is gone.

    Attributes:
        taken: How many batches were taken.
    """

    is_once = True

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches, self.taken = batches, 0

    def open(self, *, epoch: int = 0, start: int = 0) -> Iterator[Any]:
        """The batches from `start` on.

        Raises:
            FailedPreconditionError: They were taken before.
        """
        del epoch
        if start < self.taken:
            raise errors.FailedPreconditionError(
                errors.describe(
                    f"The dataset was set to step {start}, but {self.taken} of its source's "
                    "batches were taken.",
                    why="The source is an iterator, such as a generator, and cannot go back.",
                    fix="Distribute something that can be iterated again, or a new iterator.",
                )
            )
        for batch in self._batches:
            self.taken += 1
            if self.taken > start:
                yield batch


def is_arrays(dataset: Any) -> bool:
    """Whether the dataset is a tree of arrays, not a list of batches or an iterator."""
    if isinstance(dataset, (np.ndarray, jax.Array)):
        return True
    if not isinstance(dataset, (dict, tuple)) or not dataset:
        return False
    leaves = jax.tree.leaves(dataset)
    return bool(leaves) and all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves)


def digest_of_first(source: Elements) -> str | None:
    """A number of the first element, as 16 hexadecimal digits; None where reading it could tell.

    Only what is made to be opened several times is opened.
    """
    is_list = isinstance(source, IterableBatches) and isinstance(source._batches, (list, tuple))
    if not (is_list or isinstance(source, (ArrayBatches, Dataset))):
        return None
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(next(iter(source.open()), ())):
        array = np.asarray(leaf)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]
