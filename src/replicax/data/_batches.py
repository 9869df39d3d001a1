"""Stages that make batches of rows, and cut batches into pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from replicax.data._batching import piece_bounds, piece_of, stacked
from replicax.data._dataset import Dataset
from replicax.data._requests import Block, Ids, Requests
from replicax.data._stage import Stage, owned


class Batch(Stage):
    """Rows stacked into batches."""

    def __init__(self, below: Dataset, size: int, drop_remainder: bool) -> None:  # noqa: FBT001
        super().__init__(below)
        self._size, self._drop_remainder = size, drop_remainder

    def __repr__(self) -> str:
        drop = ", drop_remainder=True" if self._drop_remainder else ""
        return f"{self._below!r}.batch({self._size}{drop})"

    @property
    def num_elements(self) -> int | None:
        rows = self._below.num_elements
        if rows is None:
            return None
        return rows // self._size if self._drop_remainder else -(-rows // self._size)

    @property
    def batch_size(self) -> int | None:
        return self._size

    def _rows(self, index: int, epoch: int) -> Block:
        low, total = index * self._size, self._below.num_elements
        high = low + self._size if total is None else min(low + self._size, total)
        return np.arange(low, high), np.full(high - low, epoch)

    def _ids(self, indices: Ids, epochs: Ids) -> Ids | None:
        if self._below.batch_size is not None:
            return None  # A row is a batch, and has many places in the source.
        blocks = [self._rows(*one) for one in zip(indices.tolist(), epochs.tolist(), strict=True)]
        rows, row_epochs = zip(*blocks, strict=True)
        return self._below._ids(np.concatenate(rows), np.concatenate(row_epochs))

    def _stream(self, wanted: Requests) -> Iterator[Any]:
        sizes: deque[int] = deque()

        def rows() -> Requests:
            for indices, epochs in wanted:
                for one in zip(indices.tolist(), epochs.tolist(), strict=True):
                    block = self._rows(*one)
                    sizes.append(len(block[0]))
                    yield block

        if self._below._gathers:
            for block in rows():
                yield self._below._gather(*block)
            return
        batch: list[Any] = []
        with owned(self._below._stream(rows())) as elements:
            for element in elements:
                batch.append(element)
                if len(batch) == sizes[0]:
                    sizes.popleft()
                    yield stacked(batch)
                    batch = []

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        batch: list[Any] = []
        with owned(self._below._iterate(epoch, start * self._size)) as elements:
            for element in elements:
                batch.append(element)
                if len(batch) == self._size:
                    yield stacked(batch)
                    batch = []
        if batch and not self._drop_remainder:
            yield stacked(batch)


class Piece(Stage):
    """One of several contiguous pieces of every batch."""

    def __init__(self, below: Dataset, num_pieces: int, index: int) -> None:
        super().__init__(below)
        self._num_pieces, self._index = num_pieces, index

    def __repr__(self) -> str:
        return f"<piece {self._index} of {self._num_pieces} of every batch of {self._below!r}>"

    @property
    def batch_size(self) -> int | None:
        size = self._below.batch_size
        return None if size is None else -(-size // self._num_pieces)

    @property
    def is_sharded(self) -> bool:
        return self._num_pieces > 1

    def _ids(self, indices: Ids, epochs: Ids) -> Ids | None:
        pieces = []
        for at in range(len(indices)):
            ids = self._below._ids(indices[at : at + 1], epochs[at : at + 1])
            if ids is None:
                return None
            low, high = piece_bounds(len(ids), self._num_pieces, self._index)
            pieces.append(ids[low:high])
        return np.concatenate(pieces)

    def _stream(self, wanted: Requests) -> Iterator[Any]:
        return self._cut(self._below._stream(wanted))

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        return self._cut(self._below._iterate(epoch, start))

    def _cut(self, batches: Iterator[Any]) -> Iterator[Any]:
        with owned(batches):
            for batch in batches:
                yield piece_of(batch, self._num_pieces, self._index)
