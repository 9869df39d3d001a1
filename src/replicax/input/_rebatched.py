"""The rows of some elements, in order, in batches of another size."""

from __future__ import annotations

import bisect
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
        self._known_ends: dict[int, list[int]] = {}

    @property
    def num_elements(self) -> int | None:
        """Number of batches of an epoch, if the source knows its rows."""
        ends = self._ends(0)
        return None if ends is None else -(-ends[-1] // self._size)

    def _ends(self, epoch: int) -> list[int] | None:
        """Row 0, and the row after the last of each element, counted from the first element's."""
        if self._source.num_elements is None:
            return None
        if epoch not in self._known_ends:
            rows = [self._source.row_ids(i, epoch=epoch) for i in range(self._source.num_elements)]
            if any(ids is None for ids in rows):
                return None
            ends = [0, *itertools.accumulate(len(ids) for ids in rows if ids is not None)]
            # Shuffled batches are of other sizes in each epoch; a new dictionary for other threads.
            self._known_ends = {epoch: ends}
            return ends
        return self._known_ends[epoch]

    def row_ids(self, element: int, *, epoch: int = 0) -> RowIds | None:
        """The rows of one batch, by their places in the source."""
        ends = self._ends(epoch)
        if ends is None:
            return None
        first = element * self._size
        last = min(first + self._size, ends[-1])
        found = []
        at = bisect.bisect_right(ends, first) - 1
        while at < len(ends) - 1 and ends[at] < last:
            ids = self._source.row_ids(at, epoch=epoch)
            if ids is None:
                return None
            found.append(ids[max(first - ends[at], 0) : last - ends[at]])
            at += 1
        return np.concatenate(found) if found else np.arange(0)

    def open(self, *, epoch: int = 0, start: int = 0) -> Iterator[Any]:
        """The batches from `start` on; where rows are not counted, those before are read, too."""
        skip, at = start * self._size, 0
        ends = self._ends(epoch) if start else None
        if ends is not None:
            at = bisect.bisect_right(ends, skip) - 1
            skip -= ends[at]
        missing, parts = self._size, []
        structure: Any = None
        for number, element in enumerate(self._source.open(epoch=epoch, start=at), at):
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
