"""What the workers have run, compared by the master at equal places; see `_order`.

Workers are ahead of each other: where nothing waits for the others, by any number of entries. So
what is compared is kept until all have come by: repetitions of an entry as one *run*. What is
dropped all the same is kept as a hash.
"""

from __future__ import annotations

import bisect
import dataclasses

from replicax.errors import Table, describe

from ._failure import Failure
from ._frames import Message
from ._order import VARIANT_BITS, Described, rolled

_MOST_RUNS = 1 << 16
"""Runs that are kept for workers that are behind."""

_MOST_NAMES = 4096
_NOTHING: Described = ("nothing yet", "-")
_DROPPED: Described = ("this or one before, which is not known any more", "-")

LEFT = "left the job"
"""What a worker does that has said good-bye."""


@dataclasses.dataclass
class _Run:
    """The entries from `start` to before `end` are all `entry`."""

    start: int
    end: int
    entry: int


@dataclasses.dataclass
class _Worker:
    """What is known of one worker."""

    place: int = 0
    hash: int = 0
    last: int = 0
    entering: int = 0
    changed: float = 0.0
    has_left: bool = False
    names: dict[int, Described] = dataclasses.field(default_factory=dict)
    said: dict[int, Described] = dataclasses.field(default_factory=dict)

    def described(self, place: int, entry: int) -> Described:
        return self.said.get(place) or self.names.get(entry >> VARIANT_BITS, ("?", "-"))


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where workers have gone apart.

    Attributes:
        place: How many entries they have in common.
        rows: For each worker its number, what it does next, and where.
        is_variant: Whether they run one program in different variants.
    """

    place: int
    rows: tuple[tuple[int, str, str], ...]
    is_variant: bool

    def message(self) -> str:
        """What happened, for people."""
        what = f"The workers have gone apart after {self.place} programs and meetings in common."
        why = "All workers must run the same programs, and meet, in the same order."
        fix = (
            "do not run a step, or a collective such as `strategy.reduce` or `Checkpoint.save`, "
            "under a condition that only some workers meet, such as `if strategy.is_chief:`; "
            "run the same number of steps everywhere."
        )
        if self.is_variant:
            why = "They run one step with arrays of different shapes, or different plain numbers."
            fix = "pass the same on every worker; rows of its own belong in a distributed batch."
        table = Table(("worker", "next", "at"), self.rows)
        return describe(what, table=table, why=why, fix=fix)

    def to_failure(self) -> Failure:
        """The failure of the job: of the worker that has left, or of all."""
        left = next((rank for rank, what, _ in self.rows if what == LEFT), None)
        if left is None:
            return Failure(rank=None, kind="mismatch", message=self.message())
        what = f"It has left the job, and others go on.\n{self.message()}"
        error = "replicax.errors:CollectiveMismatchError"
        return Failure(rank=left, kind="exit", message=what, error=error)


class Orders:
    """The orders of all workers.

    Args:
        world_size: Number of workers.
    """

    def __init__(self, world_size: int) -> None:
        self._workers = [_Worker() for _ in range(world_size)]
        self._runs: list[_Run] = []
        self._start = self._end = 0
        self._start_hash = 0
        self._reported: tuple[int, ...] = ()

    def heard(self, rank: int, message: Message, now: float) -> Difference | None:
        """A worker tells what it has run.

        Raises:
            ValueError: (also KeyError, TypeError) It makes no sense.
        """
        worker = self._workers[rank]
        if int(message["from"]) != worker.place:
            raise ValueError(f"from {message['from']}, not {worker.place}")
        for key, what, site in message["names"][:_MOST_NAMES]:
            if len(worker.names) < _MOST_NAMES:
                worker.names[int(key)] = (str(what), str(site))
        for place, what, site in message["said"]:
            worker.said[int(place)] = (str(what), str(site))
        entering = int(message["entering"])
        if message["runs"] or entering != worker.entering:
            worker.changed = now
        worker.entering = entering
        for entry, count in message["runs"]:
            if int(count) < 1:
                raise ValueError(f"a run of {count}")
            found = self._take(worker, int(entry), int(count))
            if found is not None:
                return self._difference(found, rank, int(entry))
        self._forget()
        return self._entering() or self._missing()

    def left(self, rank: int) -> Difference | None:
        """A worker has said good-bye: nothing follows."""
        self._workers[rank].has_left = True
        return self._missing()

    def where(self, rank: int) -> dict[str, object]:
        """Where a worker is, for tables."""
        worker = self._workers[rank]
        if worker.entering:
            last = worker.described(-1, worker.entering)
        elif worker.place:
            last = worker.described(worker.place - 1, worker.last)
        else:
            last = _NOTHING
        return {"has run": worker.place, "last": last[0], "at": last[1]}

    def is_stalled(self, now: float, seconds: float) -> bool:
        """Whether some have waited so long for others; True once for each such wait."""
        there = [worker for worker in self._workers if not worker.has_left]
        places = tuple(worker.place + bool(worker.entering) for worker in there)
        if len(set(places)) < 2 or places == self._reported:  # noqa: PLR2004 - all at one place
            return False
        if any(now - worker.changed < seconds for worker in there):
            return False
        self._reported = places
        return True

    def _difference(
        self, place: int, rank: int | None = None, entry: int | None = None
    ) -> Difference:
        """What each worker does at a place; `rank` is known to make `entry` there."""
        rows: list[tuple[int, str, str]] = []
        keys: list[int] = []
        for other, worker in enumerate(self._workers):
            own = entry if other == rank else self._at(place) if worker.place > place else None
            if own is None and worker.place == place:
                own = worker.entering or None
            described = (LEFT, "-") if worker.has_left else _NOTHING
            if own is not None:
                keys.append(own >> VARIANT_BITS)
                described = worker.described(place, own)
            elif worker.place > place:
                described = _DROPPED
            rows.append((other, *described))
        return Difference(place, tuple(rows), is_variant=len(keys) > 1 and len(set(keys)) == 1)

    # --- comparing -----------------------------------------------------------------------

    def _take(self, worker: _Worker, entry: int, count: int) -> int | None:
        """Adds a run of a worker; returns the place where it differs from others', if it does."""
        place, end = worker.place, worker.place + count
        worker.last = entry
        if place < self._start:  # Others are so far ahead that only a hash is left.
            split = min(end, self._start)
            worker.hash = rolled(worker.hash, entry, split - place)
            if split == self._start and worker.hash != self._start_hash:
                return place
            worker.place = place = split
        at = bisect.bisect_right(self._runs, place, key=lambda run: run.start) - 1
        while place < end and 0 <= at < len(self._runs):
            run = self._runs[at]
            if run.end > place:
                if run.entry != entry:
                    worker.place = end
                    return place
                place = min(end, run.end)
            at += 1
        worker.hash = rolled(worker.hash, entry, end - worker.place)
        worker.place = end
        if place < end:
            self._extend(place, end, entry)
        return None

    def _extend(self, start: int, end: int, entry: int) -> None:
        if self._runs and self._runs[-1].entry == entry:
            self._runs[-1].end = end
        else:
            self._runs.append(_Run(start, end, entry))
        self._end = end

    def _forget(self) -> None:
        """Drops what all have come by, and more if that is much."""
        common = min(worker.place for worker in self._workers)
        count = 0
        while count < len(self._runs) - 1:
            run = self._runs[count]
            if run.end > common and len(self._runs) - count <= _MOST_RUNS:
                break
            self._start_hash = rolled(self._start_hash, run.entry, run.end - self._start)
            self._start = run.end
            count += 1
        del self._runs[:count]
        for worker in self._workers:
            for place in [place for place in worker.said if place < self._start]:
                del worker.said[place]

    def _entering(self) -> Difference | None:
        """Workers that start different programs, or another one than those ahead have run."""
        found: dict[int, int] = {}
        for worker in self._workers:
            if worker.entering:
                entry = found.setdefault(worker.place, worker.entering)
                if entry != worker.entering or self._at(worker.place) not in (None, entry):
                    return self._difference(worker.place)
        return None

    def _missing(self) -> Difference | None:
        """A worker has left before entries that others have made."""
        places = [worker.place for worker in self._workers if worker.has_left]
        if places and min(places) < self._end:
            return self._difference(min(places))
        return None

    def _at(self, place: int) -> int | None:
        """The entry at a place; None where nobody was."""
        at = bisect.bisect_right(self._runs, place, key=lambda run: run.start) - 1
        return self._runs[at].entry if at >= 0 and place < self._runs[at].end else None
