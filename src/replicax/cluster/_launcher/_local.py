"""One start of the workers of this host, and how they are brought to an end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import BinaryIO

from replicax._log import ENVIRONMENT_NAME
from replicax.cluster._timeouts import Timeouts
from replicax.recording import FOLDER

from ._environment import JobPlace, worker_environment
from ._events import Event, Events
from ._group import WorkerGroup
from ._options import STDERR, STDOUT, LaunchOptions
from ._output import OutputPump, Stream, console_of

RECORDS = "records"
"""The folder in that of the output where workers write what they did last, after a failure."""


class LocalWorkers:
    """The workers of this host, from their start to their end.

    Args:
        options: What the launch was told.
        place: What the workers share.
        timeouts: How long they may take to leave.
        secret_file: Where they find the secret.
        events: Gets an `exited` for each.
        logs: Folder for their output; None writes no files.
    """

    def __init__(
        self,
        options: LaunchOptions,
        place: JobPlace,
        *,
        timeouts: Timeouts,
        secret_file: str,
        events: Events,
        logs: Path | None,
    ) -> None:
        self._place = place
        records = {} if logs is None else {FOLDER: str(logs.absolute() / RECORDS)}
        self._timeouts = timeouts
        self._kill_at: float | None = None
        self.codes: dict[int, int] = {}
        self.killed: set[int] = set()
        self._pump = OutputPump()
        self._errors: dict[int, Stream] = {}
        self._group = WorkerGroup(
            timeouts.shutdown,
            lambda local_rank, code: events.put(Event("exited", local_rank, code)),
        )
        self._started: list[int] = []
        try:
            for local_rank in range(options.workers):
                environment = worker_environment(
                    {ENVIRONMENT_NAME: "info"} | os.environ,
                    place,
                    local_rank,
                    timeouts=timeouts,
                    secret_file=secret_file,
                )
                self._start(options, local_rank, environment | records, logs)
        except BaseException:
            self._group.kill()
            self.close()
            raise
        self._pump.start()

    def _start(
        self,
        options: LaunchOptions,
        local_rank: int,
        environment: Mapping[str, str],
        logs: Path | None,
    ) -> None:
        worker = self._group.start(local_rank, options.command, environment)
        self._started.append(local_rank)
        rank = self._place.first_rank + local_rank
        shown = options.streams_of("console", local_rank)
        kept = options.streams_of("files", local_rank)
        for bit, name, pipe in (
            (STDOUT, "stdout", worker.stdout),
            (STDERR, "stderr", worker.stderr),
        ):
            assert pipe is not None  # noqa: S101 - for mypy: it was asked for
            console = console_of(getattr(sys, name))
            file = _log_file(logs, rank, name) if logs is not None and kept & bit else None
            stream = Stream(rank, pipe, console if shown & bit else None, file)
            self._pump.add(stream)
            if bit == STDERR:
                self._errors[local_rank] = stream

    def ended(self, local_rank: int, code: int) -> int:
        """Notes the end of a worker, and returns its rank."""
        self.codes[local_rank] = code
        return self._place.first_rank + local_rank

    @property
    def running(self) -> list[int]:
        """The local ranks of the workers that are still there."""
        return [local_rank for local_rank in self._started if local_rank not in self.codes]

    def end(self, number: int | None, spare: Collection[int] = ()) -> None:
        """Asks the workers to leave; who does not within `timeouts.shutdown` is killed.

        Args:
            number: A signal for all. None: SIGTERM for those that are not spared.
            spare: Ranks that hear of the failure through the control channel, and leave.
        """
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._timeouts.shutdown
        for local_rank in self.running:
            if number is not None:
                self._group.send(local_rank, number)
            elif self._place.first_rank + local_rank not in spare:
                self._group.send(local_rank, signal.SIGTERM)

    def kill(self, rank: int) -> None:
        """Kills one worker at once, if it is here."""
        local_rank = rank - self._place.first_rank
        if local_rank in self.running:
            self.killed.add(rank)
            self._group.send(local_rank, signal.SIGKILL)

    def kill_all(self) -> None:
        """Kills all that are left at once."""
        for local_rank in self.running:
            self.kill(self._place.first_rank + local_rank)

    def tick(self) -> None:
        """Kills who has not left in time."""
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            self.kill_all()

    def tail(self, rank: int, *, wait_seconds: float = 0.0) -> list[str]:
        """The last lines of a worker's standard error; complete after `close`.

        Args:
            rank: The worker.
            wait_seconds: How long to wait for the end of the stream.
        """
        stream = self._errors.get(rank - self._place.first_rank)
        if stream is not None:
            stream.over.wait(wait_seconds)
        lines = list(stream.tail) if stream is not None else []
        return [line.decode(errors="replace") for line in lines]

    def close(self) -> None:
        """Ends what the workers left behind, and shows the last of their output."""
        self._group.close()
        self._pump.finish()


def _log_file(logs: Path, rank: int, name: str) -> BinaryIO:
    folder = logs / f"rank_{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / f"{name}.log").open("xb")
