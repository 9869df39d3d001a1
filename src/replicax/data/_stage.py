"""What stages have in common: all that they do not change is the dataset's below."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

from replicax._threads import closed
from replicax.data._dataset import Dataset
from replicax.data._requests import Ids, Requests


@contextmanager
def owned(elements: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """Close the iterator at the end: an error may keep its frame, and its threads, alive."""
    try:
        yield elements
    finally:
        closed(elements)


class Stage(Dataset):
    """A dataset over the one below it."""

    def __init__(self, below: Dataset) -> None:
        self._below = below

    def _on(self, below: Dataset) -> Self:
        """The same stage over another dataset."""
        other = copy.copy(self)
        other._below, other._passes = below, 0
        return other

    @property
    def num_elements(self) -> int | None:
        return self._below.num_elements

    @property
    def source_length(self) -> int | None:
        return self._below.source_length

    @property
    def is_infinite(self) -> bool:
        return self._below.is_infinite

    @property
    def is_once(self) -> bool:
        return self._below.is_once

    @property
    def batch_size(self) -> int | None:
        return self._below.batch_size

    @property
    def files(self) -> tuple[str, ...] | None:
        return self._below.files

    @property
    def is_sharded(self) -> bool:
        return self._below.is_sharded

    @property
    def shards_by_hint(self) -> bool:
        return self._below.shards_by_hint

    @property
    def has_indices(self) -> bool:
        return self._below.has_indices

    def _resharded(self, num_shards: int, index: int, by: Literal["files", "hint"]) -> Dataset:
        if (self.files is None) if by == "files" else (not self.shards_by_hint):
            return super()._resharded(num_shards, index, by)
        return self._on(self._below._resharded(num_shards, index, by))

    def _ids(self, indices: Ids, epochs: Ids) -> Ids | None:
        return self._below._ids(indices, epochs)

    def _stream(self, wanted: Requests) -> Iterator[Any]:
        return self._below._stream(wanted)

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        return self._below._iterate(epoch, start)


class IndexStage(Stage):
    """A stage that is arithmetic on element numbers alone."""

    def _locate(self, indices: Ids, epochs: Ids) -> tuple[Ids, Ids]:
        """The numbers, in the dataset below, of elements of this one."""
        return indices, epochs

    @property
    def _gathers(self) -> bool:
        return self._below._gathers

    @property
    def _is_in_memory(self) -> bool:
        return self._below._is_in_memory

    def _gather(self, indices: Ids, epochs: Ids) -> Any:
        return self._below._gather(*self._locate(indices, epochs))

    def _ids(self, indices: Ids, epochs: Ids) -> Ids | None:
        return self._below._ids(*self._locate(indices, epochs))

    def _stream(self, wanted: Requests) -> Iterator[Any]:
        return self._below._stream(self._locate(*block) for block in wanted)
