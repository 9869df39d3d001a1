"""Batches are split and placed on the devices while the step before them runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from replicax._threads import Ahead
from replicax.input._agreed import AgreedFeed
from replicax.input._runs import Run, RunLength, in_runs
from replicax.input._split import HostBatch
from replicax.values import ReplicaMesh


class Batches:
    """The batches of one pass, in runs; those that were put back come first.

    Args:
        runs: The runs.
        length: How long the runs are, where what makes them looks.
    """

    def __init__(self, runs: Iterator[Run], length: RunLength) -> None:
        self._runs, self._length = runs, length
        self._returned: list[Run] = []
        self._number = 0

    @property
    def goes_on(self) -> bool:
        """Whether an exception that came to its reader from elsewhere has lost nothing."""
        return isinstance(self._runs, Ahead) and not self._runs.has_failed

    def make_runs(self, size: int, *, is_placed: bool) -> None:
        """From now on, make runs of so many batches, from the next one on that is taken."""
        if self._length.size != size:
            returned = sum(run.count for run in self._returned)
            self._length.is_placed = is_placed
            self._length.change(size, self._number - returned)

    def take(self) -> Run:
        """The next run.

        Raises:
            StopIteration: There is none.
        """
        if self._returned:
            return self._returned.pop()
        run = next(self._runs)
        self._number += run.count
        return run

    def take_up_to(self, count: int) -> list[Run]:
        """The next `count` batches, or as many as are left. All or, after an error, none."""
        taken: list[Run] = []
        try:
            while count:
                run = self.take()
                if run.count > count:
                    self.put_back(run.part(count, run.count))
                    run = run.part(0, count)
                taken.append(run)
                count -= run.count
        except StopIteration:
            pass
        except BaseException:
            for run in reversed(taken):
                self.put_back(run)
            raise
        return taken

    def put_back(self, run: Run) -> None:
        """Give a run again, before the others."""
        self._returned.append(run)


def placed_ahead(
    batches: Iterator[tuple[int, HostBatch]],
    step: int,
    mesh: ReplicaMesh,
    size: int,
    length: RunLength,
) -> Batches:
    """The batches on the devices, up to `size` runs of them placed in advance by a thread.

    Placing copies rows to devices and runs no program, so it cannot wait for a collective.
    Exceptions arrive in their turn.
    """

    def placed(held: Sequence[HostBatch], steps: Sequence[int]) -> Run:
        run = Run.of(held, steps, mesh)
        if length.size == 1:
            run.first()
        elif length.is_placed:
            run.placed()
        return run

    runs = in_runs(batches, step, length, placed)
    return Batches(Ahead(runs, size) if size else runs, length)


def placed_together(
    feed: AgreedFeed, epoch: int, step: int, mesh: ReplicaMesh, size: int, length: RunLength
) -> Batches:
    """The batches that all workers agree on; up to `size` are read in advance.

    Workers meet where batches are taken, not in the thread, so a pass may be left at any step.
    """
    read = feed.read(epoch, step)
    if size:
        read = Ahead(read, size)
    made = functools.partial(Run.of, mesh=mesh)
    return Batches(in_runs(_agreed(feed, read, step), step, length, made), length)


def _agreed(
    feed: AgreedFeed, read: Iterator[tuple[int, HostBatch]], step: int
) -> Iterator[tuple[int, HostBatch]]:
    while True:
        own: Any
        step, own = next(read, (step, None))
        agreed = feed.agreed(own)
        if agreed is None:
            return
        yield step, agreed
