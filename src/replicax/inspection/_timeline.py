"""Records as a trace that Perfetto and Chrome show: one process a worker, one row a replica.

The format is the JSON of Chrome's trace events: complete events (`X`) with times in microseconds,
and metadata (`M`) that names the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._merged import Inspection
from ._records import EMBEDDED, Done
from ._report import size

_MOST_SHOWN = 16
"""Collectives that are written out with each slice."""

STEPS, COLLECTIVES, MEETINGS, FIRST_REPLICA = 0, 1, 2, 10
"""Rows of a worker."""

Ends = Mapping[tuple[int, int], Sequence[int]]
"""When each replica had ended an entry, by worker and number of the entry in its record."""


def trace_text(seen: Inspection, *, ends: Ends | None = None) -> str:
    """The trace as JSON. That of one worker also holds its record, for `replicax inspect`.

    Args:
        seen: The records.
        ends: When the replicas had ended, where that was waited for.
    """
    told: dict[str, Any] = {"traceEvents": list(events(seen, ends or {})), "displayTimeUnit": "ms"}
    if len(seen.records) == 1:
        told[EMBEDDED] = next(iter(seen.records.values())).raw
    return json.dumps(told, separators=(",", ":"))


def events(seen: Inspection, ends: Ends) -> Iterator[dict[str, Any]]:
    """The events of all workers, on one clock that begins with the first entry."""
    starts = [
        seen.start_of(worker, done)
        for worker, record in seen.records.items()
        for done in record.done
    ]
    zero = min(starts, default=0)
    for worker, record in seen.records.items():
        name = f"worker {worker} ({record.host}, process {record.pid})"
        yield _named("process_name", worker, STEPS, name)
        yield {**_named("process_sort_index", worker, STEPS, ""), "args": {"sort_index": worker}}
        rows = {STEPS: "steps, as they were started"}
        for number, done in enumerate(record.done):
            shift = seen.offsets[worker] - zero
            over = done.end if done.end is not None else record.now
            row = {"collective": COLLECTIVES, "meeting": MEETINGS}.get(done.kind, STEPS)
            rows.setdefault(
                row,
                {COLLECTIVES: "collectives of the eager runner"}.get(
                    row, "meetings of the workers"
                ),
            )
            yield _slice(done, worker, row, done.start + shift, over + shift)
            if done.kind == "meeting":
                continue
            ended = ends.get((worker, number), ())
            for i, replica in enumerate(done.replicas):
                rows.setdefault(FIRST_REPLICA + replica, f"replica {replica}")
                end = ended[i] if i < len(ended) else over
                yield _slice(done, worker, FIRST_REPLICA + replica, done.start + shift, end + shift)
        for row, title in rows.items():
            yield _named("thread_name", worker, row, title)
            yield {**_named("thread_sort_index", worker, row, ""), "args": {"sort_index": row}}


def _named(what: str, worker: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": worker, "tid": row, "args": {"name": name}}


def _slice(done: Done, worker: int, row: int, start: int, end: int) -> dict[str, Any]:
    args: dict[str, Any] = {"at": done.site}
    if done.run is not None:
        args["run"] = done.run
    if done.place is not None:
        args["entry"] = done.place
    if done.state != "ended":
        args["state"] = done.state
    if row != STEPS and done.count:
        args["collectives"] = _collectives(done)
        args["bytes a replica"] = done.bytes
    return {
        "ph": "X",
        "name": done.name,
        "cat": done.kind,
        "pid": worker,
        "tid": row,
        "ts": start / 1e3,
        "dur": max(end - start, 0) / 1e3,
        "args": args,
    }


def _collectives(done: Done) -> list[str]:
    trace = max(done.traces, key=len, default=())
    shown = [
        f"{each.kind} {each.op or ''}".strip()
        + f": {size(each.bytes)} in {each.arrays} array(s), key "
        f"{each.group_key}:{each.instance_key}, {each.site}"
        for each in trace[:_MOST_SHOWN]
    ]
    if done.count > len(shown):
        shown.append(f"... and {done.count - len(shown)} more")
    return shown
