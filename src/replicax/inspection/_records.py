"""Records of the flight recorder, read back: from files, or as a running job sends them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicax.errors import InvalidArgumentError, NotFoundError, describe
from replicax.recording import FORMAT, VERSION, Collective

EMBEDDED = "replicax"
"""The key of a trace file under which it holds its record."""


@dataclasses.dataclass(frozen=True)
class Done:
    """One entry: something that a worker ran.

    Attributes:
        kind: `step`, `collective` of the eager runner, or `meeting`.
        name: Of the function, the collective, or what the workers met for.
        site: The line of user code.
        run: How many runs of the same there were before; None if it has not ended.
        place: How many entries all workers had in common before; None for one of this worker.
        start: Nanoseconds of the worker's monotonic clock.
        end: When it had been started, or when it was over if `is_awaited`; None if neither.
        state: `ended`, `runs` or `raised`.
        is_awaited: Whether `end` is that of the work.
        replicas: The replicas of the worker that take part.
        traces: The collectives that its replicas ask for, for each trace of the function.
        count: How many those are, in the longest trace.
        bytes: What one replica puts into them.
    """

    kind: str
    name: str
    site: str
    run: int | None
    place: int | None
    start: int
    end: int | None
    state: str
    is_awaited: bool
    replicas: tuple[int, ...]
    traces: tuple[tuple[Collective, ...], ...]
    count: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Record:
    """What one worker has recorded.

    Attributes:
        worker: Its number; 0 for a process on its own.
        workers: Number of workers.
        host: Its host.
        pid: Its process there.
        boot: Names the clock of the host; None if unknown.
        reason: Why the record was made.
        now: When, on the worker's monotonic clock, in nanoseconds.
        wall_offset: What to add to that clock for nanoseconds since the epoch.
        done: The entries, the oldest first.
        stacks: Where each thread was.
        states: Where each worker was, as the master knew.
        failure: The failure that was heard of, or None.
        raw: The record as it came.
    """

    worker: int
    workers: int
    host: str
    pid: int
    boot: str | None
    reason: str
    now: int
    wall_offset: int
    done: tuple[Done, ...]
    stacks: tuple[Mapping[str, Any], ...]
    states: tuple[Mapping[str, Any], ...]
    failure: Mapping[str, Any] | None
    raw: Mapping[str, Any] = dataclasses.field(repr=False)


def parsed(record: object, where: str) -> Record:
    """The record in what JSON held.

    Args:
        record: What JSON held.
        where: Where it is from, for errors.

    Raises:
        InvalidArgumentError: It is no record.
    """
    if isinstance(record, Mapping) and EMBEDDED in record:
        record = record[EMBEDDED]
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        raise _no_record(where, "it has not that format.")
    if record.get("version") != VERSION:
        raise _no_record(where, f"its version is {record.get('version')!r}, not {VERSION}.")
    try:
        return Record(
            worker=int(record.get("worker", 0)),
            workers=int(record.get("workers", 1)),
            host=str(record["host"]),
            pid=int(record["pid"]),
            boot=record["boot"],
            reason=str(record["reason"]),
            now=int(record["now"]),
            wall_offset=int(record["wall_offset"]),
            done=_done(record),
            stacks=tuple(record["stacks"]),
            states=tuple(record.get("states", ())),
            failure=record.get("failure"),
            raw=record,
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _no_record(where, f"something in it makes no sense: {error!r}.") from error


def _done(record: Mapping[str, Any]) -> tuple[Done, ...]:
    known = record["subjects"]
    traces = [
        tuple(tuple(Collective(*each) for each in trace) for trace in one["collectives"])
        for one in known
    ]
    found = []
    for number, start, end, run, place in record["entries"]:
        about = known[number]
        found.append(
            Done(
                kind=str(about["kind"]),
                name=str(about["name"]),
                site=str(about["site"]),
                run=None if run is None else int(run),
                place=None if place is None else int(place),
                start=int(start),
                end=abs(int(end)) or None,
                state="ended" if end > 0 else "raised" if end < 0 else "runs",
                is_awaited=bool(about["is_awaited"]),
                replicas=tuple(map(int, about["replicas"])),
                traces=traces[number],
                count=max(about["counts"], default=0),
                bytes=max(about["bytes"], default=0),
            )
        )
    return _with_last_place(found, {i for i, one in enumerate(known) if one["is_shared"]}, record)


def _with_last_place(
    found: list[Done], shared: set[int], record: Mapping[str, Any]
) -> tuple[Done, ...]:
    """The last entry that all workers have may not have ended, and then has drawn no place."""
    places = [one.place for one in found if one.place is not None]
    for i in reversed(range(len(found))):
        if record["entries"][i][0] in shared:
            if found[i].place is None:
                found[i] = dataclasses.replace(found[i], place=max(places, default=-1) + 1)
            break
    return tuple(found)


def read(path: Path) -> list[Record]:
    """The records in a file, or in the files of a folder.

    Raises:
        NotFoundError: There is none.
        InvalidArgumentError: A file is no record.
    """
    if path.is_dir():
        files = sorted(path.glob("worker-*.json")) or sorted(path.glob("*/worker-*.json"))
        if not files:
            raise NotFoundError(
                describe(
                    f"There are no records in {str(path)!r}.",
                    why="workers write one when a worker fails or stalls, and on SIGUSR1.",
                )
            )
        return [record for file in files for record in read(file)]
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFoundError(describe(f"{str(path)!r} cannot be read: {error.strerror}.")) from error
    try:
        return [parsed(json.loads(text), str(path))]
    except ValueError as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise _no_record(str(path), f"it is no JSON: {error}.") from error


def _no_record(where: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(describe(f"{where} is no record of a worker.", why=why))
