"""The thread that tells the master that this worker lives, and hears of failures elsewhere."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from ._control import Control
from ._failure import Failure
from ._frames import Message
from ._silence import Silence
from ._timeouts import BEACON_INTERVAL_S, Timeouts

SOON_S = 0.1
"""Until the next sign of life, where the last one found something that is just beginning."""


class Worker(Protocol):
    """What the watcher tells of, and asks."""

    def beacon(self) -> bool:
        """Sends a sign of life; returns whether to send another one soon."""

    def heard(self, message: Message) -> None:
        """A message of the master that is no abort."""

    def abort(self, failure: Failure) -> None:
        """A worker, or the master, has failed."""

    def escalate(self, seconds: float) -> None:
        """Is called again and again after a failure, with the time since then."""


class Watcher:
    """Runs until the worker has left.

    Args:
        control: The connection to the master.
        worker: The worker.
        timeouts: How long the master may be silent.
    """

    def __init__(self, control: Control, worker: Worker, timeouts: Timeouts) -> None:
        self._control = control
        self._worker = worker
        self._timeouts = timeouts
        self._silence = self._silence_of(None)
        self._ended = False
        self._aborted_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="replicax-watcher", daemon=True)

    def _silence_of(self, identity: object) -> Silence:
        return Silence(
            identity,
            patience=self._timeouts.beacon,
            limit=self._timeouts.collective,
            now=time.monotonic(),
        )

    def start(self) -> None:
        """Starts to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._ended = True
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=4 * BEACON_INTERVAL_S)

    def _run(self) -> None:
        next_beacon = time.monotonic()
        while not self._ended:
            now = time.monotonic()
            if now >= next_beacon:
                if now - next_beacon > self._timeouts.beacon / 2:
                    self._silence.heard(now)  # This process was stopped: pings lie in the queue.
                is_eager = self._worker.beacon()
                next_beacon = now + (SOON_S if is_eager else BEACON_INTERVAL_S)
            try:
                messages = self._control.receive(next_beacon - now)
            except ConnectionError as error:
                self._master_is("lost", f"Its connection ended: {error}.")
                return self._after_the_master()
            now = time.monotonic()
            if messages:
                self._silence.heard(now)
                for message in messages:
                    self._take(message)
            elif self._silence.is_over(now):
                self._master_is("frozen", "It gave no sign of life: it is stopped or cut off.")
            self._escalate()
        return None

    def _take(self, message: Message) -> None:
        if message["kind"] == "welcome":
            self._silence = self._silence_of(message.get("identity"))
        if message["kind"] != "abort":
            self._worker.heard(message)
            return
        try:
            failure = Failure.from_json(message["failure"])
        except (KeyError, TypeError, ValueError):
            failure = Failure(rank=None, kind="lost", message="A worker failed.")
        self._abort(failure)

    def _master_is(self, kind: str, message: str) -> None:
        if not self._ended:
            self._abort(Failure(rank=None, kind=kind, message=message))

    def _abort(self, failure: Failure) -> None:
        if self._aborted_at is None:
            self._aborted_at = time.monotonic()
            self._worker.abort(failure)

    def _escalate(self) -> None:
        if self._aborted_at is not None:
            self._worker.escalate(time.monotonic() - self._aborted_at)

    def _after_the_master(self) -> None:
        while not self._ended:
            time.sleep(BEACON_INTERVAL_S)
            self._escalate()
