"""What is hooked into the process while it is a worker: its exceptions, its end, one signal."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol

import jax

from replicax.errors import ReplicaxError

from . import _compat
from ._waiting import have_returned

EXIT_CODE = 1
"""Of a process that ends itself because it cannot get out of a wait otherwise."""

END_S = 5.0
"""How long the end of a failed process may take."""

RETURN_S = 1.0
"""How long the end waits for calls of jax that a failure has made useless."""


class Ending(Protocol):
    """What the hooks ask of the runtime, and tell it."""

    @property
    def is_failing(self) -> bool:
        """Whether this process ends because of a failure."""

    def explain(self, error: BaseException) -> BaseException:
        """What an exception means."""

    def fail(self, error: BaseException) -> None:
        """An exception ends the program."""

    def leave(self) -> None:
        """The program ends."""

    def forked(self) -> None:
        """This is a copy of the worker's process."""


class Endings:
    """Installs the hooks, and takes them back.

    Args:
        worker: The runtime.
        handler: What runs in the main thread when the signal comes.
        number: The signal.
    """

    def __init__(
        self,
        worker: Ending,
        handler: Callable[[int, FrameType | None], None],
        number: signal.Signals,
    ) -> None:
        self._worker = worker
        self._handler = handler
        self._number = number
        self._previous_hook: Any = None
        self._previous_handler: Any = None
        self._is_installed = False

    def install(self) -> None:
        """Hooks in. Without the main thread there is no signal; waits then end by the engine."""
        self._is_installed = True
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(self._number, self._handler)
        self._previous_hook, sys.excepthook = sys.excepthook, self._on_exception
        atexit.unregister(_let_calls_return)
        atexit.register(_let_calls_return)  # Runs after the next one, which ends most calls.
        atexit.register(self._at_exit)
        forget = weakref.WeakMethod(self._in_child)
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    def remove(self) -> None:
        """Takes the hooks back, where nobody has hooked in after."""
        if not self._is_installed:
            return
        self._is_installed = False
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._previous_hook
        atexit.unregister(self._at_exit)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(self._number) == self._handler:
            signal.signal(self._number, self._previous_handler or signal.SIG_DFL)

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if self._is_installed:
            try:
                explained = self._worker.explain(error)
                self._worker.fail(explained)
            except ReplicaxError as failure:  # It is raised wherever the main thread is.
                explained = failure
            if explained is not error:
                kind, error, trace = type(explained), explained, explained.__traceback__
        self._previous_hook(kind, error, trace)

    def _at_exit(self) -> None:
        error = _uncaught()
        if error is not None:  # Another hook was put in the place of ours.
            self._worker.fail(error)
        if self._worker.is_failing:
            _limit_the_end()
        self._worker.leave()

    def _in_child(self) -> None:
        """A forked process is no worker: its exceptions and its end are its own."""
        if self._is_installed:
            self.remove()
            self._worker.forked()


def _uncaught() -> BaseException | None:
    """The exception that ends the program, as the interpreter keeps it; None in a session."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    is_session = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    return error if isinstance(error, BaseException) and not is_session else None


def end_now(error: BaseException) -> None:
    """Prints an error that no thread could raise, and ends the process."""
    lines = "".join(traceback.format_exception_only(error))
    sys.stderr.write(f"The main thread did not get out of its wait in time.\n{lines}")
    _end_at_once()


def _let_calls_return() -> None:
    """Waits for the calls of jax that a failure made useless, while Python can still take them."""
    if not have_returned(RETURN_S) and _uncaught() is not None:
        _end_at_once()


def _end_at_once() -> NoReturn:
    """Ends the process without the rest of Python's own end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_CODE)


def _limit_the_end() -> None:
    """Ends the process where its end hangs, as in a thread that waits for a lost peer."""
    stream = sys.__stderr__
    if stream is not None:
        faulthandler.dump_traceback_later(END_S, exit=True, file=stream)
    _skip_destructors()


def _skip_destructors() -> None:
    """Keeps XLA's destructors from running: they join threads that may wait for a lost peer.

    The last thing that Python does is to free objects, among them JAX's clients; a reference that
    nobody gives back keeps those. Then the C library would run destructors: the function that
    `on_exit` was given last, where there is one, ends the process before, with its exit code.
    """
    if _compat.devices_started():
        for client in {id(device.client): device.client for device in jax.local_devices()}.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    libc = ctypes.CDLL(None)
    on_exit = getattr(libc, "on_exit", None)
    if on_exit is not None:
        on_exit(libc._exit, None)
