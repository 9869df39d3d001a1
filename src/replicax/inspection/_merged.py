"""Records of several workers side by side: on one clock, at equal places, and who is late."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._records import Done, Record

_P95 = 0.95


@dataclasses.dataclass(frozen=True)
class Row:
    """What the workers had at one place of the order that they have in common.

    Attributes:
        place: The place, from 0.
        done: The entry of each worker that has one there.
        differs: Whether those are not the same.
    """

    place: int
    done: Mapping[int, Done]
    differs: bool


@dataclasses.dataclass(frozen=True)
class Pace:
    """How one worker got on with one step function. Times are in seconds.

    Attributes:
        worker: Its number.
        name: The step function.
        runs: How many runs are looked at.
        mean: From one start to the next, on average.
        p95: The same, which 95 of 100 keep within.
        start_mean: What starting took.
        late_mean: How much later than the first worker it started, on average; None if alone.
        late_p95: The same, which 95 of 100 keep within.
        last: In how many of the runs it was the last to start.
    """

    worker: int
    name: str
    runs: int
    mean: float | None
    p95: float | None
    start_mean: float
    late_mean: float | None
    late_p95: float | None
    last: int


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The records of a job, merged. Printing it gives a report.

    Attributes:
        workers: Number of workers.
        records: What each worker has recorded, by number.
        silent: Workers that did not answer.
        states: Where each worker was, as the master knew.
        failure: The first failure, or None.
        offsets: Nanoseconds to add to a worker's clock for that of the first record.
        rows: What the workers had in common, place by place, the oldest first.
        paces: How each worker got on.
    """

    workers: int
    records: Mapping[int, Record]
    silent: tuple[int, ...]
    states: tuple[Mapping[str, Any], ...]
    failure: Mapping[str, Any] | None
    offsets: Mapping[int, int]
    rows: tuple[Row, ...]
    paces: tuple[Pace, ...]

    @property
    def parted(self) -> Row | None:
        """Where the workers went apart for good; None where they did not.

        Differences before that were refused, and caught by the program.
        """
        found = None
        for row in self.rows:
            if row.differs:
                found = found or row
            elif len(row.done) > 1:
                found = None
        return found

    def start_of(self, worker: int, done: Done) -> int:
        """When an entry began, on the clock of the first record, in nanoseconds."""
        return done.start + self.offsets[worker]

    def __str__(self) -> str:
        """The report, as text."""
        from ._survey import survey  # noqa: PLC0415 - it needs this module's classes

        return survey(self)


def merged(
    records: Sequence[Record],
    *,
    silent: Sequence[int] = (),
    states: Sequence[Mapping[str, Any]] = (),
    failure: Mapping[str, Any] | None = None,
) -> Inspection:
    """Puts records side by side. Of several records of one worker the latest counts.

    Args:
        records: At least one.
        silent: Workers that did not answer.
        states: What the master knows; by default what a record says of that.
        failure: The first failure; by default what a record says of that.
    """
    by_worker: dict[int, Record] = {}
    for record in sorted(records, key=lambda each: each.now + each.wall_offset):
        by_worker[record.worker] = record
    by_worker = dict(sorted(by_worker.items()))
    known = list(by_worker.values())
    offsets = _offsets(known)
    rows = _rows(known)
    return Inspection(
        workers=max([each.workers for each in known] + [len(states)]),
        records=by_worker,
        silent=tuple(silent) or _without_record(known, states),
        states=tuple(states) or next((each.states for each in known if each.states), ()),
        failure=failure or next((each.failure for each in known if each.failure), None),
        offsets=offsets,
        rows=rows,
        paces=_paces(known, rows, offsets),
    )


def _without_record(
    records: Sequence[Record], states: Sequence[Mapping[str, Any]]
) -> tuple[int, ...]:
    workers = max([each.workers for each in records] + [len(states)])
    return tuple(sorted(set(range(workers)) - {each.worker for each in records}))


def _offsets(records: Sequence[Record]) -> dict[int, int]:
    """What to add to each clock for the first one.

    Processes of one host share a clock. Clocks of other hosts are set by the wall clock, and then
    by meetings: all workers leave one at nearly the same time.
    """
    first = records[0]
    ends = {
        record.worker: {
            done.place: done.end
            for done in record.done
            if done.kind == "meeting" and done.state == "ended" and done.place is not None
        }
        for record in records
    }
    found = {}
    for record in records:
        if record.boot is not None and record.boot == first.boot:
            found[record.worker] = 0
            continue
        own, others = ends[record.worker], ends[first.worker]
        differences = [(others[at] or 0) - (own[at] or 0) for at in own.keys() & others.keys()]
        by_wall = record.wall_offset - first.wall_offset
        found[record.worker] = int(statistics.median(differences)) if differences else by_wall
    return found


def _rows(records: Sequence[Record]) -> tuple[Row, ...]:
    at: dict[int, dict[int, Done]] = defaultdict(dict)
    for record in records:
        for done in record.done:
            if done.place is not None:
                at[done.place][record.worker] = done
    return tuple(Row(place, done, _differ(done.values())) for place, done in sorted(at.items()))


def _differ(entries: Iterable[Done]) -> bool:
    """Whether these are not the same, or different runs of one step."""
    found = list(entries)
    runs = {each.run for each in found if each.kind == "step" and each.run is not None}
    return len({(each.kind, each.name) for each in found}) > 1 or len(runs) > 1


def _paces(
    records: Sequence[Record], rows: Sequence[Row], offsets: Mapping[int, int]
) -> tuple[Pace, ...]:
    late: dict[tuple[int, str], list[float]] = defaultdict(list)
    last: dict[tuple[int, str], int] = defaultdict(int)
    for row in rows:
        steps = {worker: done for worker, done in row.done.items() if done.kind == "step"}
        if len(steps) < 2 or row.differs:  # noqa: PLR2004 - nobody to compare with
            continue
        starts = {worker: done.start + offsets[worker] for worker, done in steps.items()}
        first = min(starts.values())
        slowest = max(starts, key=lambda worker: starts[worker])
        for worker, start in starts.items():
            key = worker, steps[worker].name
            late[key].append((start - first) / 1e9)
            last[key] += worker == slowest
    found = []
    for record in records:
        by_name: dict[str, list[Done]] = defaultdict(list)
        for done in record.done:
            if done.kind == "step" and done.state == "ended":
                by_name[done.name].append(done)
        for name, steps_of in by_name.items():
            key = record.worker, name
            between = [
                (after.start - before.start) / 1e9 for before, after in itertools.pairwise(steps_of)
            ]
            found.append(
                Pace(
                    worker=record.worker,
                    name=name,
                    runs=len(steps_of),
                    mean=statistics.fmean(between) if between else None,
                    p95=p95(between),
                    start_mean=statistics.fmean(
                        ((done.end or done.start) - done.start) / 1e9 for done in steps_of
                    ),
                    late_mean=statistics.fmean(late[key]) if late[key] else None,
                    late_p95=p95(late[key]),
                    last=last[key],
                )
            )
    return tuple(sorted(found, key=lambda pace: (pace.name, pace.worker)))


def p95(values: Sequence[float]) -> float | None:
    """The least value that 95 of 100 do not exceed; None of nothing.

    Examples:
        >>> p95(range(1, 101)), p95([3.0]), p95([])
        (95, 3.0, None)
    """
    ordered = sorted(values)
    return ordered[math.ceil(_P95 * len(ordered)) - 1] if ordered else None
