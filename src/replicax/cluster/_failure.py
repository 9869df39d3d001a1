"""The record of a failure: data that crosses the wire, and the error made of it."""

from __future__ import annotations

import dataclasses
import textwrap
import time as _time
import traceback as _traceback
from collections.abc import Mapping
from typing import Any

from replicax.errors import (
    CollectiveMismatchError,
    Origin,
    WorkerFailedError,
    describe,
    worker_failed,
)

KINDS = ("exception", "signal", "exit", "lost", "frozen", "stall", "never came", "mismatch")
MAX_TEXT = 64 * 1024
"""Longest message or traceback that is sent; the middle of a longer one is left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """What is known of the first failure of a job.

    Attributes:
        rank: The worker that failed; None for the master itself, or for a mismatch.
        kind: How: `exception`, `signal`, `exit`, `lost`, `frozen`, `stall`, `never came`, or
            `mismatch`, where workers have done different things.
        time: When it was noticed, in seconds since the epoch.
        step: The last step that the worker has reported, if any.
        message: One line or more for people.
        traceback: The worker's traceback, where it raised.
        host: The worker's host, if known.
        error: The class that it raised, as `module:qualified.name`.

    Examples:
        >>> failure = Failure(rank=1, kind="signal", message="It was killed by SIGKILL.", step=7)
        >>> Failure.from_json(failure.to_json()) == failure
        True
        >>> print(failure.to_error().message.splitlines()[0])
        Worker 1 failed (signal, last reported step 7): It was killed by SIGKILL.
    """

    rank: int | None
    kind: str
    message: str
    time: float = dataclasses.field(default_factory=_time.time)
    step: int | None = None
    traceback: str | None = None
    host: str | None = None
    error: str | None = None

    @classmethod
    def of_exception(cls, error: BaseException, *, rank: int, step: int | None = None) -> Failure:
        """The record of an exception that this process has raised. Context: any."""
        kind = type(error)
        try:
            text = f"{kind.__name__}: {error}"
        except Exception:  # noqa: BLE001 - the user's __str__ may fail too
            text = kind.__name__
        lines = "".join(_traceback.format_exception(error))
        return cls(
            rank=rank,
            kind="exception",
            message=_shortened(text),
            step=step,
            traceback=_shortened(lines),
            error=f"{kind.__module__}:{kind.__qualname__}",
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Failure:
        """The failure that `to_json` made `record` of; wrong or unknown fields are left out.

        Raises:
            ValueError: It names no kind of failure.
        """
        if not isinstance(record, Mapping) or record.get("kind") not in KINDS:
            raise ValueError(f"no record of a failure: {record!r:.100}")
        message = record.get("message")
        return cls(
            rank=_typed(record.get("rank"), int),
            kind=record["kind"],
            message=_shortened(message) if isinstance(message, str) else "",
            time=float(_typed(record.get("time"), int, float) or _time.time()),
            step=_typed(record.get("step"), int),
            traceback=_typed(record.get("traceback"), str),
            host=_typed(record.get("host"), str),
            error=_typed(record.get("error"), str),
        )

    @property
    def who(self) -> str:
        """The culprit, in words."""
        if self.kind == "mismatch":
            return "The order of the workers"
        return "The master" if self.rank is None else f"Worker {self.rank}"

    def to_error(self, at: str | None = None) -> WorkerFailedError | CollectiveMismatchError:
        """The exception that every other worker raises; `at` says where that one was."""
        if self.kind == "mismatch":  # It has no culprit: all raise it.
            return CollectiveMismatchError(self.message if at is None else f"{self.message}\n{at}")
        said = "step" if self.kind == "exception" else "last reported step"
        where = self.kind if self.step is None else f"{self.kind}, {said} {self.step}"
        parts = [f"{self.who} failed ({where}): {self.message}"]
        if self.traceback:
            parts += ["Its traceback:", textwrap.indent(self.traceback.rstrip(), "  ")]
        if at is not None:
            parts.append(at)
        message = describe(
            "\n".join(parts),
            why="the workers of a job fail together: what the others would wait for never comes.",
        )
        return worker_failed(
            message,
            origin=Origin(job="worker", task=self.rank, step=self.step),
            kind=self.kind,
            remote_traceback=self.traceback,
            remote_class=self.error,
        )


def _shortened(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _typed(value: Any, *types: type) -> Any:
    return value if isinstance(value, types) and not isinstance(value, bool) else None
