"""What a worker does with its flight recorder: shows it, and writes it after a failure."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from replicax.errors import InvalidArgumentError
from replicax.recording import (
    RECORDER,
    dump_on_signal,
    ignore_signal,
    job_folder,
    snapshot,
    write_or_log,
)

from ._control import Control
from ._failure import Failure
from ._frames import Message

LAUNCHED = "REPLICAX_CONTROL"
"""The variable that a worker of `replicax run` has."""

_FEW = 200


class Keeping:
    """The records of one worker.

    Args:
        rank: Number of this worker.
        world_size: Number of workers.

    Attributes:
        place: Where records go; None before the worker has joined.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._identity = {"worker": rank, "workers": world_size}
        self._is_kept = False
        self.place: Path | None = None

    def begin(self, job: object) -> None:
        """The worker has joined; `job` is what the master calls the job."""
        RECORDER.identity = dict(self._identity)
        if isinstance(job, str) and job.isalnum():
            self.place = job_folder(job)
            RECORDER.folder = str(self.place)

    def listen(self) -> None:
        """From now on SIGUSR1 asks for the record, under `replicax run`. In the main thread."""
        if LAUNCHED in os.environ:
            dump_on_signal()

    def end(self) -> None:
        """The worker has left: the process is on its own."""
        RECORDER.identity, RECORDER.folder = {}, None
        ignore_signal()

    def show(self, control: Control, message: Message) -> None:
        """The master asks for the record."""
        look = message.get("look")
        record = snapshot("inspected")
        try:
            control.send("recorded", look=look, record=record)
        except InvalidArgumentError:  # It is too long.
            record = snapshot("inspected", entries=RECORDER.entries()[-_FEW:])
            record["subjects"] = [each | {"collectives": []} for each in record["subjects"]]
            control.send("recorded", look=look, record=record)

    def keep(self, record: dict[str, Any], failure: Failure, states: list[dict[str, Any]]) -> None:
        """Writes a record of the moment when a failure was heard of; the first one counts."""
        if not self._is_kept and self.place is not None:
            self._is_kept = True
            record |= {"failure": failure.to_json(), "states": states}
            write_or_log(record, self.place, level=logging.INFO)

    def report(self, states: list[dict[str, Any]]) -> None:
        """Writes the record of a worker that waits, or is waited for, for long."""
        write_or_log(snapshot("workers wait for others") | {"states": states}, self.place)
