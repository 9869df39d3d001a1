"""The rows of some elements, in order, in batches of another size."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from replicax.input._sources import Elements, Plain, RowIds
from replicax.input._split import host_array, row_count


class Rebatched(Plain):
    """The rows of `source` in batches of `batch_size`; the last one of an epoch may be short.

    A pipeline that reads a stream of its own takes its share of every global batch from it.

    Args:
        source: Elements that are batches of any sizes.
        batch_size: Rows of a full batch.
    """

    def __init__(self, source: Elements, batch_size: int) -> None:
        self._source, self.batch_size = source, batch_size
        self._size = batch_size

    @property
    def num_elements(self) -> int | None:
        """Number of batches of an epoch, if the source knows its rows."""
        return None if self._ends is None else -(-self._ends[-1] // self._size)

    @functools.cached_property
    def _ends(self) -> list[int] | None:
        """Row 0, and the row after the last of each element, counted from the first element's."""
        if self._source.num_elements is None:
            return None
        rows = [self._source.row_ids(i) for i in range(self._source.num_elements)]
        if any(ids is None for ids in rows):
            return None
        return [0, *itertools.accumulate(len(ids) for ids in rows if ids is not None)]

    def row_ids(self, element: int, *, epoch: int = 0) -> RowIds | None:
        """The rows of one batch, by their places in the source."""
        if self._ends is None:
            return None
        first = element * self._size
        last = min(first + self._size, self._ends[-1])
        found = []
        at = bisect.bisect_right(self._ends, first) - 1
        while at < len(self._ends) - 1 and self._ends[at] < last:
            ids = self._source.row_ids(at, epoch=epoch)
            if ids is None:
                return None
            start = self._ends[at]
            found.append(ids[max(first - start, 0) : last - start])
            at += 1
        return np.concatenate(found) if found else np.arange(0)

    def open(self, *, epoch: int = 0, start: int = 0) -> Iterator[Any]:
        """The batches from `start` on; the rows before are read and left out."""
        skip = start * self._size
        missing, parts = self._size, []
        structure: Any = None
        for number, element in enumerate(self._source.open(epoch=epoch)):
            leaves, structure = jax.tree.flatten(element)
            arrays = [host_array(leaf) for leaf in leaves]
            rows = row_count(element, arrays, number)
            first = min(skip, rows)
            skip -= first
            while first < rows:
                last = min(first + missing, rows)
                parts.append([array[first:last] for array in arrays])
                missing -= last - first
                first = last
                if missing == 0:
                    yield structure.unflatten(_joined(parts))
                    missing, parts = self._size, []
            if parts:  # The source may write into this element before the next one is here.
                parts[-1] = [array.copy() for array in parts[-1]]
        if parts:
            yield structure.unflatten(_joined(parts))


def _joined(parts: Sequence[Sequence[np.ndarray[Any, Any]]]) -> list[np.ndarray[Any, Any]]:
    return [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
