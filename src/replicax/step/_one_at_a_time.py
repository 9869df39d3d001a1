"""The lock of what threads must not do at once: start programs, and bind model objects.

Two threads that start programs would give away the same arrays, and start collectives in different
orders. Objects of model libraries hold the values of one trace, or of one replica, at a time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from replicax._log import logger

ONE_AT_A_TIME = threading.RLock()

_PATIENCE_SECONDS = 30.0
"""How long a thread waits for another one before it says so; a trace may well take longer."""

_logger = logger("step")


class _Mine(threading.local):
    depth = 0
    """How often this thread holds the lock for objects that are bound."""


_MINE = _Mine()


def _acquire() -> None:
    """Take the lock, and say so where that takes long."""
    while not ONE_AT_A_TIME.acquire(timeout=_PATIENCE_SECONDS):
        _logger.warning(
            "%s still waits for another thread, in which modules hold the values of a step that "
            "is being traced or run by hand.",
            threading.current_thread().name,
        )


@contextlib.contextmanager
def held_for_objects() -> Iterator[None]:
    """Hold the lock for the length of a `with` block in which objects are bound."""
    _acquire()
    try:
        _MINE.depth += 1
        try:
            yield
        finally:
            _MINE.depth -= 1
    finally:
        ONE_AT_A_TIME.release()


@contextlib.contextmanager
def let_go() -> Iterator[None]:
    """Let other threads bind objects for the length of a `with` block: this one waits in it."""
    depth = _MINE.depth
    _MINE.depth = 0
    for _ in range(depth):
        ONE_AT_A_TIME.release()
    try:
        yield
    finally:
        for _ in range(depth):
            _acquire()
        _MINE.depth = depth


@contextlib.contextmanager
def held_if_free(timeout_seconds: float) -> Iterator[bool]:
    """Hold the lock if no other thread holds it for long; gives whether it does."""
    is_held = ONE_AT_A_TIME.acquire(timeout=timeout_seconds)
    try:
        yield is_held
    finally:
        if is_held:
            ONE_AT_A_TIME.release()
