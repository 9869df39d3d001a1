"""Stages that pick, map and read ahead elements, each a few lines over the dataset below."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

from replicax._threads import Ahead, parallel
from replicax.data._dataset import Dataset
from replicax.data._requests import Block, Ids, Requests, recorded
from replicax.data._stage import IndexStage, Stage, owned


class Take(IndexStage):
    """The first elements."""

    def __init__(self, below: Dataset, count: int) -> None:
        super().__init__(below)
        self._count = count

    def __repr__(self) -> str:
        return f"{self._below!r}.take({self._count})"

    @property
    def files(self) -> tuple[str, ...] | None:
        """None: the first elements of each part of the files are others."""
        return None

    @property
    def num_elements(self) -> int | None:
        size = self._below.num_elements
        if self._below.is_infinite or self._count == 0:
            return self._count
        return None if size is None else min(size, self._count)

    @property
    def is_infinite(self) -> bool:
        return False

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        left = self._count - start
        if left <= 0:
            return
        with owned(self._below._iterate(epoch, start)) as elements:
            for element in elements:
                yield element
                left -= 1
                if not left:  # without reading the one after
                    return


class Skip(IndexStage):
    """All but the first elements."""

    def __init__(self, below: Dataset, count: int) -> None:
        super().__init__(below)
        self._count = count

    def __repr__(self) -> str:
        return f"{self._below!r}.skip({self._count})"

    @property
    def files(self) -> tuple[str, ...] | None:
        """None: the first elements of each part of the files are others."""
        return None

    @property
    def num_elements(self) -> int | None:
        size = self._below.num_elements
        return None if size is None else max(0, size - self._count)

    def _locate(self, indices: Ids, epochs: Ids) -> Block:
        return indices + self._count, epochs

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        return self._below._iterate(epoch, start + self._count)


class Shard(IndexStage):
    """Every n-th element."""

    def __init__(self, below: Dataset, num_shards: int, index: int) -> None:
        super().__init__(below)
        self._num_shards, self._index = num_shards, index

    def __repr__(self) -> str:
        return f"{self._below!r}.shard({self._num_shards}, {self._index})"

    @property
    def num_elements(self) -> int | None:
        size = self._below.num_elements
        return None if size is None else max(0, -(-(size - self._index) // self._num_shards))

    @property
    def is_sharded(self) -> bool:
        return self._num_shards > 1 or self._below.is_sharded

    def _locate(self, indices: Ids, epochs: Ids) -> Block:
        return indices * self._num_shards + self._index, epochs

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        first = start * self._num_shards + self._index
        with owned(self._below._iterate(epoch, first)) as elements:
            for number, element in enumerate(elements):
                if number % self._num_shards == 0:
                    yield element


class ShardHint(IndexStage):
    """The place where policy HINT shards; else nothing."""

    def __repr__(self) -> str:
        return f"{self._below!r}.shard(HINT)"

    @property
    def shards_by_hint(self) -> bool:
        return True

    def _resharded(self, num_shards: int, index: int, by: Literal["files", "hint"]) -> Dataset:
        if by == "hint":
            return Shard(self._below, num_shards, index)
        return super()._resharded(num_shards, index, by)


class Repeat(IndexStage):
    """Epochs one after the other; epoch e of `repeat(count)` has those from `e * count` on."""

    def __init__(self, below: Dataset, count: int | None) -> None:
        super().__init__(below)
        self._count = count

    def __repr__(self) -> str:
        return f"{self._below!r}.repeat({'' if self._count is None else self._count})"

    @property
    def num_elements(self) -> int | None:
        size = self._below.num_elements
        if self._count == 0 or size == 0:
            return 0
        return None if size is None or self._count is None else size * self._count

    @property
    def is_infinite(self) -> bool:
        if self._count == 0 or self._below.num_elements == 0:
            return False
        return self._count is None or self._below.is_infinite

    def _locate(self, indices: Ids, epochs: Ids) -> Block:
        size = self._below.num_elements
        first = epochs if self._count is None else epochs * self._count
        if not size:  # no end, or nobody asks
            return indices, first
        return indices % size, first + indices // size

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        size, count = self._below.num_elements, self._count
        first = epoch if count is None else epoch * count
        passed = start // size if size else 0
        start -= passed * (size or 0)
        while count is None or passed < count:
            # Where the length is not known, elements that were passed over are counted.
            number = 0
            begin = start if size else 0
            with owned(self._below._iterate(first + passed, begin)) as elements:
                for number, element in enumerate(elements, begin + 1):
                    if number > start:
                        yield element
            if number == 0:
                return  # no epoch has elements
            start, passed = max(0, start - number), passed + 1


class Map(Stage):
    """A function of every element."""

    def __init__(self, below: Dataset, fn: Callable[[Any], Any], workers: int | None) -> None:
        super().__init__(below)
        self._fn, self._workers = fn, workers

    def __repr__(self) -> str:
        return f"{self._below!r}.map({self._name})"

    @property
    def _name(self) -> str:
        return getattr(self._fn, "__name__", type(self._fn).__name__)

    def _call(self, element: Any, number: tuple[int, int]) -> Any:
        try:
            return self._fn(element)
        except Exception as error:
            error.add_note(
                f"Raised by `.map({self._name})` for element {number[0]} of epoch {number[1]}."
            )
            raise

    def _stream(self, wanted: Requests) -> Iterator[Any]:
        record: deque[tuple[int, int]] = deque()
        below = self._below._stream(recorded(wanted, record))
        return self._mapped(_numbered(below, record))

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        return self._mapped(_counted(self._below._iterate(epoch, start), epoch, start))

    def _mapped(self, numbered: Iterator[tuple[Any, tuple[int, int]]]) -> Iterator[Any]:
        if self._workers is not None:
            yield from parallel(self._call, numbered, self._workers)
            return
        with owned(numbered):
            for element, number in numbered:
                yield self._call(element, number)


def _numbered(
    elements: Iterator[Any], record: deque[tuple[int, int]]
) -> Iterator[tuple[Any, tuple[int, int]]]:
    with owned(elements):
        for element in elements:
            yield element, record.popleft()


def _counted(
    elements: Iterator[Any], epoch: int, start: int
) -> Iterator[tuple[Any, tuple[int, int]]]:
    with owned(elements):
        for number, element in enumerate(elements, start):
            yield element, (number, epoch)


class Prefetch(Stage):
    """Elements read ahead in a thread."""

    def __init__(self, below: Dataset, size: int) -> None:
        super().__init__(below)
        self._size = size

    def __repr__(self) -> str:
        return f"{self._below!r}.prefetch({self._size})"

    def _stream(self, wanted: Requests) -> Iterator[Any]:
        return Ahead(self._below._stream(wanted), self._size)

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        return Ahead(self._below._iterate(epoch, start), self._size)
