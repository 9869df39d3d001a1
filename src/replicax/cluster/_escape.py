"""The way out of a wait: how a failure elsewhere reaches the main thread.

A signal ends the waits of jax that listen to signals. The engine's sockets end the others, and
the waits of other threads; see `_engine`. Who still does not hear is told in the middle of any
Python code after a while, and in the end the process ends itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from . import _endings
from ._failure import Failure
from ._guard import MainGuard, Waits

SIGNAL = signal.SIGURG
"""Gets the main thread out of a wait. Nothing happens by default when it comes."""


class Escape:
    """What this worker knows of a failure, and whether its main thread has raised it.

    Args:
        waits: What the guard asks.
        whereabouts: Says where this worker is, for the message.
        patience: Seconds until a main thread that waits in no guard is told all the same.

    Attributes:
        guard: The guard of the main thread.
        failure: The first failure of the job, or None so far.
        is_own: Whether this worker has reported a failure of its own.
    """

    def __init__(self, waits: Waits, whereabouts: Callable[[], str], patience: float) -> None:
        self.guard = MainGuard(waits)
        self.failure: Failure | None = None
        self.is_own = False
        self._whereabouts = whereabouts
        self._patience = patience
        self._main = threading.main_thread()
        self._is_raised = False
        self._is_forced = False

    def is_main(self) -> bool:
        """Whether the thread that asks is the main thread."""
        return threading.get_ident() == self._main.ident

    def check(self) -> None:
        """Raises the failure of another worker, if there is one."""
        if self.failure is not None and not self.is_own:
            if self.is_main():
                self._is_raised = True
            raise self.failure.to_error(self._whereabouts())

    def abort(self, *, by_force: bool) -> None:
        """Tells the main thread: in a guard, or wherever it is."""
        self.guard.has_failed = True
        self._is_forced = by_force
        self._kick()

    def escalate(self, seconds: float) -> None:
        """Goes further the longer the failure is ago."""
        if self.failure is None or self.is_own:
            return
        if seconds > self._patience and not (self._is_raised or self._is_forced):
            self._is_forced = True
            self._kick()
        is_stuck = not self._is_raised or not self._main.is_alive()
        if is_stuck and seconds > 2 * self._patience:
            _endings.end_now(self.failure.to_error(self._whereabouts()))

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Runs in the main thread, wherever it is."""
        guard = self.guard
        if guard.has_failed and not self._is_raised and (guard.depth or self._is_forced):
            self.check()

    def _kick(self) -> None:
        if self._main.ident is not None and self._main.is_alive():
            signal.pthread_kill(self._main.ident, SIGNAL)
