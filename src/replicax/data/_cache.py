"""Elements kept in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from replicax.data._dataset import Dataset
from replicax.data._requests import Ids, Requests
from replicax.data._stage import IndexStage, Stage, owned


def cached(below: Dataset) -> Dataset:
    """The stage that keeps elements; what is in memory already is not copied."""
    if below._is_in_memory:
        return FirstOrder(below)
    return Cache(below) if below.has_indices else ReadOnce(below)


class FirstOrder(IndexStage):
    """The order of epoch 0, in every epoch."""

    def __repr__(self) -> str:
        return f"{self._below!r}.cache()"

    def _locate(self, indices: Ids, epochs: Ids) -> tuple[Ids, Ids]:
        return indices, np.zeros_like(epochs)


class Cache(FirstOrder):
    """Elements are kept as they are read."""

    def __init__(self, below: Dataset) -> None:
        super().__init__(below)
        self._kept: dict[int, Any] = {}

    def _on(self, below: Dataset) -> Cache:
        return Cache(below)

    @property
    def _gathers(self) -> bool:
        return False

    def _stream(self, wanted: Requests) -> Iterator[Any]:
        for indices, _ in wanted:
            numbers = indices.tolist()
            missing = [number for number in dict.fromkeys(numbers) if number not in self._kept]
            asked = np.array(missing, np.int64)
            unread = set(missing)
            with owned(self._below._stream(iter([(asked, np.zeros_like(asked))]))) as read:
                for number in numbers:
                    if number in unread:
                        unread.remove(number)
                        self._kept[number] = next(read)
                    yield self._kept[number]


class ReadOnce(Stage):
    """What can only be read in order, read to its end at the first use."""

    def __init__(self, below: Dataset) -> None:
        super().__init__(below)
        self._elements: list[Any] | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{self._below!r}.cache()"

    def _on(self, below: Dataset) -> ReadOnce:
        return ReadOnce(below)

    @property
    def num_elements(self) -> int | None:
        return len(self._all())

    @property
    def has_indices(self) -> bool:
        return True

    @property
    def is_once(self) -> bool:
        return False  # kept

    def _all(self) -> list[Any]:
        with self._lock:
            if self._elements is None:
                self._elements = list(self._below._iterate(0, 0))
            return self._elements

    def _ids(self, indices: Ids, epochs: Ids) -> Ids | None:
        del indices, epochs
        return None  # the source numbers no rows

    def _stream(self, wanted: Requests) -> Iterator[Any]:
        elements = self._all()
        for indices, _ in wanted:
            for index in indices.tolist():
                yield elements[index]
