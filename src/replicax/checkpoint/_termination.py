"""How a program learns that it has to leave, and how it leaves."""

from __future__ import annotations

import dataclasses
import math
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from replicax import errors
from replicax._log import logger

PREEMPTED_EXIT_CODE = 42
"""The exit code of a program that was told to leave, and has saved."""

WATCH_S = 1.0
"""How often `termination_watcher_fn` is called."""

_END_S = 5.0
"""How long `close` waits for a call of it."""

_LOGGER = logger("checkpoint")


@dataclasses.dataclass(frozen=True)
class TerminationConfig:
    """How a program learns that it has to leave, and how it leaves. Context: any.

    Attributes:
        termination_watcher_fn: Called once a second in a thread of its own; true means that this
            worker has to leave. It may ask a cloud's metadata server. None: SIGTERM alone tells.
        exit_fn: Called when all workers have saved, to end the program. None: `sys.exit(42)`. If
            it returns, `rx.errors.PreemptedError` is raised.
        grace_period: Seconds from the notice to the end of the machine. With 0 the workers save
            at once and leave. Else they save at once, train on, and save once more and leave when
            the rest of the time is needed for that.
        save_fn: Saves instead of `checkpoint.save`, on all workers.

    Raises:
        InvalidArgumentError: `grace_period` is no number of seconds.
        ArgumentTypeError: Something that is to be called cannot be called.

    Examples:
        >>> TerminationConfig(grace_period=120).grace_period
        120
    """

    termination_watcher_fn: Callable[[], bool] | None = None
    exit_fn: Callable[[], Any] | None = None
    grace_period: float = 0.0
    save_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        """Checks each field."""
        for name in ("termination_watcher_fn", "exit_fn", "save_fn"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise errors.ArgumentTypeError(
                    errors.describe(
                        f"rx.TerminationConfig got {name}={value!r}.",
                        fix="pass a function or None.",
                    )
                )
        grace = self.grace_period
        is_number = isinstance(grace, (int, float)) and not isinstance(grace, bool)
        if not is_number or not math.isfinite(grace) or grace < 0:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"rx.TerminationConfig got grace_period={grace!r}.",
                    fix="pass a number of seconds, 0 or more.",
                )
            )

    def leave(self, message: str) -> NoReturn:
        """Ends the program.

        Raises:
            PreemptedError: `exit_fn` returned.
            SystemExit: There is no `exit_fn`.
        """
        if self.exit_fn is None:
            sys.exit(PREEMPTED_EXIT_CODE)
        self.exit_fn()
        raise errors.PreemptedError(message)


class TerminationSignals:
    """Calls a function when SIGTERM comes, or when the user's function says so.

    Args:
        config: Says what is looked at.
        call: Called in the signal handler, or in a thread; perhaps several times.

    Raises:
        FailedPreconditionError: Not in the main thread, where alone signals are handled, and
            nothing else would tell.
    """

    def __init__(self, config: TerminationConfig, call: Callable[[], None]) -> None:
        self._watch, self._call = config.termination_watcher_fn, call
        self._previous: Any = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_installed = threading.current_thread() is threading.main_thread()
        if self._is_installed:
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        elif self._watch is None:
            raise errors.FailedPreconditionError(
                errors.describe(
                    "A PreemptionHandler was made outside of the main thread.",
                    why="Python handles SIGTERM in the main thread alone.",
                    fix="Make it in the main thread, or pass "
                    "`rx.TerminationConfig(termination_watcher_fn=...)`.",
                )
            )
        if self._watch is not None:
            self._thread = threading.Thread(
                target=self._run, args=(self._watch,), name="replicax-termination", daemon=True
            )
            self._thread.start()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._call()
        if callable(self._previous):
            self._previous(number, frame)

    def _run(self, watch: Callable[[], bool]) -> None:
        while not self._ended.wait(WATCH_S):
            try:
                is_told = watch()
            except Exception:
                _LOGGER.exception("`termination_watcher_fn` failed; it is called again.")
                continue
            if is_told:
                self._call()
                return

    def close(self) -> None:
        """Puts the handler back that was there before, unless another one has come since."""
        self._ended.set()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(_END_S)
        is_main = threading.current_thread() is threading.main_thread()
        if self._is_installed and is_main:
            self._is_installed = False
            if signal.getsignal(signal.SIGTERM) == self._on_signal:
                signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
