"""Batches of one form that follow each other, joined on the host and placed together.

To place a batch costs about as much as a small step. A function that runs several steps in one
program (`rx.function(steps_per_execution=...)`) is given all their batches as one array, which
costs no more to place than one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from replicax.input._split import HostBatch
from replicax.step import BatchRun
from replicax.values import ReplicaMesh


class Run(BatchRun):
    """Batches that follow each other and have one structure and one shape.

    Args:
        host: The rows: leaves `[n, count, B, ...]` and `i32[n, count]` numbers of real rows; of a
            single batch without the axis of batches.
        steps: The numbers of their steps, and that of the step after.
        mesh: Where they are to be placed.
    """

    __slots__ = ("_first", "_host", "_mesh", "_placed", "count", "steps")

    def __init__(self, host: HostBatch, steps: Sequence[int], mesh: ReplicaMesh) -> None:
        self._host, self._mesh, self.steps = host, mesh, steps
        self.count = len(steps) - 1
        self._placed: Any = None
        self._first: Any = None

    @classmethod
    def of(cls, batches: Sequence[HostBatch], steps: Sequence[int], mesh: ReplicaMesh) -> Run:
        """Join batches that are alike."""
        first = batches[0]
        if len(batches) == 1:
            return cls(first, steps, mesh)
        columns = zip(*(batch.stacked for batch in batches), strict=True)
        rows = None
        if first.rows is not None:
            rows = np.stack([batch.counts for batch in batches], axis=1)
        stacked = [np.stack(column, axis=1) for column in columns]
        return cls(HostBatch(first.structure, stacked, rows), steps, mesh)

    @property
    def host(self) -> HostBatch:
        """The rows, always with the axis of batches."""
        return _mapped(self._host, lambda x: x[:, None]) if self.count == 1 else self._host

    def placed(self) -> Any:
        """All of them on the devices: the tree with `PerReplica` leaves `[n, count, B, ...]`."""
        if self._placed is None:
            self._placed = self.host.place(self._mesh)
        return self._placed

    def first(self) -> Any:
        """The first of them on the devices: the tree with `PerReplica` leaves `[n, B, ...]`."""
        if self._first is None:
            one = self._host if self.count == 1 else _mapped(self._host, lambda x: x[:, 0])
            self._first = one.place(self._mesh)
        return self._first

    def part(self, first: int, last: int, stride: int = 1) -> Run:
        """Every `stride`-th batch from `first` to the one before `last`; they share memory."""
        if (first, last, stride) == (0, self.count, 1):
            return self
        chosen = range(first, last, stride)
        steps = [*(self.steps[i] for i in chosen), self.steps[chosen[-1] + 1]]
        which = slice(first, last, stride) if len(chosen) > 1 else first
        return Run(_mapped(self.host, lambda x: x[:, which]), steps, self._mesh)

    def joined(self, other: Run) -> Run | None:
        """With those that follow; None if they are others in structure or shape."""
        mine, others = self.host, other.host
        if _form(mine, 2) != _form(others, 2):
            return None
        rows = None
        if mine.rows is not None:
            rows = np.concatenate([mine.rows, others.counts], axis=1)
        stacked = [
            np.concatenate(pair, axis=1) for pair in zip(mine.stacked, others.stacked, strict=True)
        ]
        steps = [*self.steps, *other.steps[1:]]
        return Run(HostBatch(mine.structure, stacked, rows), steps, self._mesh)


class RunLength:
    """How many batches a run has; the thread that makes them looks before each.

    Attributes:
        is_placed: Whether whole runs are to be placed.
    """

    def __init__(self, size: int, *, is_placed: bool) -> None:
        self._size_and_offset = (size, 0)
        self.is_placed = is_placed

    @property
    def size(self) -> int:
        """The number."""
        return self._size_and_offset[0]

    def change(self, size: int, offset: int) -> None:
        """From now on, runs end `size`, 2 `size`, ... batches after the `offset`-th."""
        self._size_and_offset = (size, offset)

    def ends_after(self, number: int) -> bool:
        """Whether a run ends after so many batches."""
        size, offset = self._size_and_offset
        return (number - offset) % size == 0


def in_runs(
    batches: Iterator[tuple[int, HostBatch]],
    step: int,
    length: RunLength,
    made: Callable[[Sequence[HostBatch], Sequence[int]], Run],
) -> Iterator[Run]:
    """The same batches in runs, which also end where the form of the batches changes.

    Args:
        batches: The batches, and the number of the step after each.
        step: The number of the first.
        length: How long the runs are.
        made: Makes a run of batches and the numbers of their steps.
    """
    held: list[HostBatch] = []
    steps = [step]
    number = 0
    form = None

    def ended() -> Run:
        run = made(held, tuple(steps))
        held.clear()  # Before the run is given out: what it is made of may be large.
        del steps[:-1]
        return run

    while True:
        try:
            after, batch = next(batches, (step, None))
        except BaseException:
            if held:  # What came before the error is given out before it.
                yield ended()
            raise
        if held:
            form = form or _form(held[0], 1)
            if batch is None or _form(batch, 1) != form:
                form = None
                yield ended()
        if batch is None:
            return
        held.append(batch)
        steps.append(after)
        del batch
        number += 1
        if length.ends_after(number):
            form = None
            yield ended()


def _form(batch: HostBatch, axes: int) -> tuple[Any, ...]:
    """What must be equal for batches to be one array, whose rows begin after so many axes."""
    leaves = [(leaf.shape[axes:], leaf.dtype) for leaf in batch.stacked]
    return (batch.structure, leaves, batch.rows is None)


def _mapped(batch: HostBatch, change: Any) -> HostBatch:
    rows = None if batch.rows is None else change(batch.rows)
    return HostBatch(batch.structure, [change(leaf) for leaf in batch.stacked], rows)
