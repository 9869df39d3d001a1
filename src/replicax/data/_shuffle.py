"""Orders of an epoch from a seed and the number of the epoch.

They are made of the raw words of NumPy's Philox generator, which NumPy promises never to change;
the methods of its `Generator` may give other numbers in another release.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from replicax.data._dataset import Dataset
from replicax.data._requests import Ids
from replicax.data._stage import IndexStage, Stage, owned

_KEPT_ORDERS = 4
_WORDS = 1024


def shuffled(below: Dataset, seed: int, buffer: int | None) -> Dataset:
    """The stage that shuffles: by indices where they are known."""
    if below.has_indices and not below.is_infinite:
        return Shuffle(below, seed, buffer)
    return BufferShuffle(below, seed, buffer or 1)


def _philox(seed: int, epoch: int) -> np.random.Philox:
    return np.random.Philox(key=np.array([seed, epoch], np.uint64))


def permutation(seed: int, epoch: int, size: int) -> Ids:
    """An order of ``size`` elements."""
    return np.argsort(_philox(seed, epoch).random_raw(size), kind="stable")


def draw_from_buffer(elements: Iterator[Any], seed: int, epoch: int, buffer: int) -> Iterator[Any]:
    """Each element is drawn from the next ``buffer`` ones that are left."""
    words = _words(seed, epoch)
    held: list[Any] = []
    with owned(elements):
        for element in elements:
            held.append(element)
            if len(held) >= buffer:
                yield _drawn(held, words)
    while held:
        yield _drawn(held, words)


def _drawn(held: list[Any], words: Iterator[int]) -> Any:
    place = next(words) % len(held)
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


def _words(seed: int, epoch: int) -> Iterator[int]:
    philox = _philox(seed, epoch)
    while True:
        yield from philox.random_raw(_WORDS).tolist()


class Shuffle(IndexStage):
    """An order of all elements; with a buffer the one that drawing from it would give."""

    def __init__(self, below: Dataset, seed: int, buffer: int | None) -> None:
        super().__init__(below)
        self._seed, self._buffer = seed, buffer
        self._orders: dict[int, Ids] = {}

    def __repr__(self) -> str:
        buffer = "" if self._buffer is None else f", buffer={self._buffer}"
        return f"{self._below!r}.shuffle(seed={self._seed}{buffer})"

    def _on(self, below: Dataset) -> Shuffle:
        return Shuffle(below, self._seed, self._buffer)

    def _order(self, epoch: int) -> Ids:
        orders = self._orders
        if epoch not in orders:
            size = self._below.num_elements or 0
            if self._buffer is None:
                order = permutation(self._seed, epoch, size)
            else:
                drawn = draw_from_buffer(iter(range(size)), self._seed, epoch, self._buffer)
                order = np.fromiter(drawn, np.int64, size)
            # A new dictionary, as another thread may read the old one.
            kept = sorted(orders, key=lambda other: abs(other - epoch))[: _KEPT_ORDERS - 1]
            self._orders = {**{one: orders[one] for one in kept}, epoch: order}
            return order
        return orders[epoch]

    def _locate(self, indices: Ids, epochs: Ids) -> tuple[Ids, Ids]:
        if not len(epochs) or (epochs == epochs[0]).all():
            return (self._order(int(epochs[0]))[indices] if len(epochs) else indices), epochs
        located = np.empty_like(indices)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            located[here] = self._order(epoch)[indices[here]]
        return located, epochs


class BufferShuffle(Stage):
    """Elements drawn from a buffer, of a source that can only be read in order."""

    def __init__(self, below: Dataset, seed: int, buffer: int) -> None:
        super().__init__(below)
        self._seed, self._buffer = seed, buffer

    def __repr__(self) -> str:
        return f"{self._below!r}.shuffle(seed={self._seed}, buffer={self._buffer})"

    @property
    def has_indices(self) -> bool:
        return False

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        below = self._below.open(epoch=epoch)
        with owned(draw_from_buffer(below, self._seed, epoch, self._buffer)) as elements:
            for number, element in enumerate(elements):
                if number >= start:
                    yield element
