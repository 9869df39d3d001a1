"""An inspection as text, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

from replicax.errors import Table, is_user_file

from ._merged import Inspection, Pace, Row
from ._records import Done, Record
from ._report import duration, size

SHOWN = 15
_FRAMES = 6


def survey(seen: Inspection, *, last: int = SHOWN) -> str:
    """The report for people.

    Args:
        seen: The inspection.
        last: How many entries are shown.
    """
    parts = [_head(seen)]
    if seen.failure is not None:
        said = str(seen.failure.get("message", "")).partition("\n")[0]
        parts.append(
            f"First failure: worker {seen.failure.get('rank')}, {seen.failure.get('kind')}: {said}"
        )
    parts.append(_where_they_part(seen))
    parts.append(_common(seen, last))
    parts += [_own(seen, record, last) for record in seen.records.values()]
    parts.append(_paces(seen.paces))
    parts.append(_states(seen))
    parts += [_stack(record) for record in seen.records.values()]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_json(seen: Inspection) -> str:
    """All of it: the merged tables, and the records as they came."""
    parted = seen.parted
    told: dict[str, Any] = {
        "workers": seen.workers,
        "silent": list(seen.silent),
        "failure": seen.failure,
        "parted": None if parted is None else parted.place,
        "offsets": {str(worker): offset for worker, offset in seen.offsets.items()},
        "rows": [_row_as_json(seen, row) for row in seen.rows],
        "paces": [dataclasses.asdict(pace) for pace in seen.paces],
        "states": [dict(state) for state in seen.states],
        "records": {str(worker): record.raw for worker, record in seen.records.items()},
    }
    return json.dumps(told, indent=2)


def _row_as_json(seen: Inspection, row: Row) -> dict[str, Any]:
    by_worker = {
        str(worker): {
            "kind": done.kind,
            "name": done.name,
            "site": done.site,
            "run": done.run,
            "start": seen.start_of(worker, done),
            "seconds": _seconds(done),
            "state": done.state,
        }
        for worker, done in row.done.items()
    }
    return {"place": row.place, "differs": row.differs, "workers": by_worker}


def _head(seen: Inspection) -> str:
    moment = max(record.now + record.wall_offset for record in seen.records.values()) / 1e9
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    reasons = ", ".join(dict.fromkeys(record.reason for record in seen.records.values()))
    lines = [f"{seen.workers} worker(s), {when}: {reasons}."]
    if seen.silent:
        shown = ", ".join(map(str, seen.silent))
        lines.append(f"Not answering, or without a record: worker {shown}.")
    return "\n".join(lines)


def _where_they_part(seen: Inspection) -> str:
    if len(seen.records) < 2:  # noqa: PLR2004 - nobody to compare with
        return ""
    row = seen.parted
    if row is not None:
        rows = [(worker, _what(done), done.site) for worker, done in row.done.items()]
        table = Table(("worker", "does", "at"), rows)
        return f"They part at entry {row.place}:\n{_indented(table)}"
    places = [
        max((done.place for done in record.done if done.place is not None), default=-1)
        for record in seen.records.values()
    ]
    ahead = max(places) - min(places)
    return (
        "They do the same, as far as the records reach. The first worker is "
        f"{ahead} entries ahead of the last."
    )


def _common(seen: Inspection, last: int) -> str:
    """What all have in common, one row a place."""
    rows = []
    parted = seen.parted
    shown = list(seen.rows[-last:])
    if parted is not None and parted not in shown:
        shown = [row for row in seen.rows if abs(row.place - parted.place) <= last // 2]
    for row in shown:
        starts = {worker: seen.start_of(worker, done) for worker, done in row.done.items()}
        first = min(starts.values())
        cells = []
        for worker in seen.records:
            done = row.done.get(worker)
            late = "" if done is None else f"+{duration((starts[worker] - first) / 1e9)}"
            what = f"{_what(done)}, " if row.differs and done is not None else ""
            cells.append("-" if done is None else f"{what}{late}, {_took(done)}")
        one = next(iter(row.done.values()))
        name = ">>> they part" if row.differs else _what(one)
        rows.append((row.place, name, _sent(one), *cells))
    if not rows:
        return ""
    columns = ("entry", "what", "collectives", *(f"worker {worker}" for worker in seen.records))
    title = "What the workers did in common, with how late each started, and what it took:"
    return f"{title}\n{_indented(Table(columns, rows))}"


def _own(seen: Inspection, record: Record, last: int) -> str:
    own = [done for done in record.done if done.place is None][-last:]
    if not own:
        return ""
    end = record.now
    rows = [
        (
            _what(done),
            _sent(done),
            f"{duration((end - done.start) / 1e9)} ago",
            _took(done),
            done.site,
        )
        for done in own
    ]
    table = Table(("what", "collectives", "started", "took", "at"), rows)
    whose = "" if seen.workers == 1 else f" of worker {record.worker} alone"
    return f"The last entries{whose}:\n{_indented(table)}"


def _paces(paces: Sequence[Pace]) -> str:
    rows = [
        (
            pace.name,
            pace.worker,
            pace.runs,
            _time(pace.mean),
            _time(pace.p95),
            _time(pace.start_mean),
            _time(pace.late_mean),
            _time(pace.late_p95),
            "-" if pace.late_mean is None else pace.last,
        )
        for pace in paces
    ]
    columns = ("step", "worker", "runs", "every", "p95", "to start", "late by", "p95", "was last")
    return f"Pace:\n{_indented(Table(columns, rows))}" if rows else ""


def _states(seen: Inspection) -> str:
    if not seen.states:
        return ""
    names = list(seen.states[0])
    rows = [
        ["-" if state.get(name) is None else state.get(name) for name in names]
        for state in seen.states
    ]
    return f"As the master knows:\n{_indented(Table(names, rows))}"


def _stack(record: Record) -> str:
    """Where the main thread is: the user's lines, and the innermost one of all."""
    stack = next((each for each in record.stacks if each.get("is_main")), None)
    if stack is None:
        return ""
    frames = list(stack["frames"])
    own = [frame for frame in frames[1:] if is_user_file(frame.rpartition(":")[0])]
    shown = [*frames[:1], *own][:_FRAMES]
    lines = "\n".join(f"  {frame}" for frame in shown)
    others = len(record.stacks) - 1
    head = f"Worker {record.worker} (process {record.pid} on {record.host}), main thread:"
    return f"{head}\n{lines}\n  ... and {others} other thread(s); --json has all stacks"


def _what(done: Done) -> str:
    run = "" if done.run is None or done.kind != "step" else f" {done.run}"
    return f"{done.kind} {done.name}{run}"


def _sent(done: Done) -> str:
    return f"{done.count}: {size(done.bytes)}" if done.count else "-"


def _seconds(done: Done) -> float | None:
    return None if done.end is None else (done.end - done.start) / 1e9


def _took(done: Done) -> str:
    seconds = _seconds(done)
    if seconds is None:
        return "has not returned"
    if done.state == "raised":
        return f"raised after {duration(seconds)}"
    return duration(seconds) if done.is_awaited else f"{duration(seconds)} to start"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _indented(table: Table) -> str:
    return "\n".join(f"  {line}" for line in str(table).splitlines())
