"""A record: the ring, all stacks and what tells this process from others, as JSON can hold it."""

from __future__ import annotations

import dataclasses
import logging
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from replicax._log import logger

from ._places import job_folder, own_folder, write_whole
from ._recorder import END, PLACE, RECORDER, RUN, START, SUBJECT, Entry, Subject
from ._stacks import stacks

FORMAT = "replicax record"
VERSION = 1

_MOST_COLLECTIVES = 2000
"""Of all subjects of a record together; the others are only counted."""

_log = logger("recording")


def snapshot(
    reason: str, *, frame: FrameType | None = None, entries: Sequence[Entry] | None = None
) -> dict[str, Any]:
    """What was recorded until now, and where all threads are. Context: any.

    Args:
        reason: Why somebody looks.
        frame: Where this thread was, if it is in a signal handler.
        entries: Entries in the place of those that the ring keeps.

    Examples:
        >>> record = snapshot("an example")
        >>> record["reason"], record["stacks"][0]["thread"]
        ('an example', 'MainThread')
    """
    found = list(RECORDER.entries() if entries is None else entries)
    now, wall = time.monotonic_ns(), time.time_ns()
    where = stacks(frame)
    numbers: dict[Subject, int] = {}
    rows = []
    for entry in found:
        number = numbers.setdefault(entry[SUBJECT], len(numbers))
        rows.append([number, entry[START], entry[END], entry[RUN], entry[PLACE]])
    left = _MOST_COLLECTIVES
    subjects = []
    for subject in numbers:
        subjects.append(_subject(subject, left))
        left -= sum(map(len, subjects[-1]["collectives"]))
    return {
        "format": FORMAT,
        "version": VERSION,
        "reason": reason,
        **_process(),
        **RECORDER.identity,
        "now": now,
        "wall_offset": wall - now,
        "subjects": subjects,
        "entries": rows,
        "stacks": where,
    }


def _process() -> dict[str, Any]:
    return {"host": platform.node(), "pid": os.getpid(), "boot": _boot()}


def _boot() -> str | None:
    """What names the clock: processes of one boot of a host share its monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _subject(subject: Subject, most: int) -> dict[str, Any]:
    traces = []
    for trace in list(subject.collectives):
        traces.append([list(dataclasses.astuple(each)) for each in trace[: max(most, 0)]])
        most -= len(trace)
    return {
        "kind": subject.kind,
        "name": subject.name,
        "site": subject.site,
        "is_shared": subject.place is not None,
        "is_awaited": subject.is_awaited,
        "replicas": list(subject.replicas),
        "counts": [len(trace) for trace in subject.collectives],
        "bytes": [sum(each.bytes for each in trace) for trace in subject.collectives],
        "collectives": traces,
    }


def dump(path: str | os.PathLike[str] | None = None, *, reason: str = "asked for") -> Path:
    """Writes the record of this process, and returns where. Not collective. Context: any.

    Args:
        path: The file; None takes one in the folder of the job, or of this process.
        reason: Why, for the reader.

    Raises:
        OSError: It cannot be written.
        FailedPreconditionError: The folder belongs to somebody else.
    """
    return write(snapshot(reason), None if path is None else Path(path))


def write(record: dict[str, Any], path: Path | None = None) -> Path:
    """Writes a record to a file, and returns where; see `dump`."""
    if path is None:
        path = own_folder(folder()) / _name(record)
    write_whole(path, record)
    return path


def write_or_log(
    record: dict[str, Any], place: Path | None = None, *, level: int = logging.WARNING
) -> None:
    """Writes a record to its folder, and says where; never raises.

    Args:
        record: The record.
        place: The folder; None takes that of this process.
        level: Of what is said, as in `logging`.
    """
    try:
        path = write(record, own_folder(place or folder()) / _name(record))
    except Exception as error:  # noqa: BLE001 - what is reported is something else
        _log.warning("The record of the last steps could not be written: %s", error)
    else:
        _log.log(level, "%s: the last steps are recorded in %s", record["reason"], path)


def _name(record: dict[str, Any]) -> str:
    return f"worker-{record.get('worker', 0)}.json"


def folder() -> Path:
    """Where the records of this process go; it need not exist."""
    return Path(RECORDER.folder) if RECORDER.folder else job_folder(f"process-{os.getpid()}")
