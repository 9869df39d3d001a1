"""The box at the end: who failed first, when, how, and what it last said."""

from __future__ import annotations

import dataclasses
import datetime as dt
import signal
from collections.abc import Mapping, Sequence

from replicax.cluster._failure import Failure

_TRACEBACK = "Traceback (most recent call last):"
_LINES = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What is known when a job has failed.

    Attributes:
        failure: The first failure.
        world_size: Number of workers.
        codes: Exit status of each worker that has ended (negative: by that signal).
        killed: Workers that were still there, and were killed.
        tail: The last lines that the failed worker wrote to its standard error.
        started: When the workers were started, in seconds since the epoch.
        restart: How many times the job was started before.
        max_restarts: How many times it may be started again.
        host: The host of the failed worker.
        logs: The folder with the output of the workers.
        records: The folder with what the workers of this host did last.
    """

    failure: Failure
    world_size: int
    codes: Mapping[int, int]
    killed: frozenset[int]
    tail: Sequence[str]
    started: float
    restart: int
    max_restarts: int
    host: str
    logs: str | None = None
    records: str | None = None


def box(report: Report) -> str:
    """The report for people, with a line around it."""
    failure = report.failure
    nobody = "all workers" if failure.kind == "mismatch" else "the master"
    who = nobody if failure.rank is None else f"worker {failure.rank} of {report.world_size}"
    moment = dt.datetime.fromtimestamp(failure.time).astimezone()
    after = max(0.0, failure.time - report.started)
    rows = [
        ("when", f"{moment:%Y-%m-%d %H:%M:%S %Z}, {after:.1f} s after the start"),
        ("host", failure.host or report.host),
        ("how", f"{failure.kind}: {failure.message.partition(chr(10))[0]}"),
    ]
    if failure.step is not None:
        rows.append(("step", str(failure.step)))
    if report.max_restarts:
        rows.append(("start", f"{report.restart + 1} of {report.max_restarts + 1}"))
    if others := _others(report):
        rows.append(("others", others))
    if report.logs:
        rows.append(("logs", report.logs))
    if report.records:
        rows.append(("record", f"replicax inspect {report.records}"))
    lines = [f"{name:<7}{value}" for name, value in rows]
    lines += _last_words(failure, report.tail)
    head = f"── first failure: {who} "
    return "\n".join([f"╭{head:─<78}", *(f"│ {line}".rstrip() for line in lines), f"╰{'─' * 78}"])


def how_it_ended(code: int) -> str:
    """An exit status in words.

    Examples:
        >>> how_it_ended(3), how_it_ended(-9)
        ('exit code 3', 'SIGKILL')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def exit_code(code: int) -> int:
    """The launcher's exit code for a worker's exit status: 128 and the signal, as in a shell.

    Examples:
        >>> exit_code(3), exit_code(-9)
        (3, 137)
    """
    return code if code >= 0 else 128 - code


def _others(report: Report) -> str:
    """How the other workers ended, those with the same end together."""
    by_end: dict[str, list[int]] = {}
    for rank, code in sorted(report.codes.items()):
        if rank != report.failure.rank:
            end = "killed by the launcher" if rank in report.killed else how_it_ended(code)
            by_end.setdefault(end, []).append(rank)
    return "; ".join(
        f"worker{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {end}"
        for end, ranks in by_end.items()
    )


def _last_words(failure: Failure, tail: Sequence[str]) -> list[str]:
    if failure.kind == "mismatch":
        return ["", *failure.message.splitlines()[1:]]
    if failure.traceback:
        return ["", *failure.traceback.rstrip().splitlines()[-_LINES:]]
    starts = [place for place, line in enumerate(tail) if line.startswith(_TRACEBACK)]
    words = list(tail[starts[-1] :] if starts else tail)[-_LINES:]
    return ["", "the end of its standard error:", *(f"  {line}" for line in words)] if words else []
