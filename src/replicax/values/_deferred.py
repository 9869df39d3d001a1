"""Values that wait for variables which do not exist yet.

A checkpoint may be restored before the variables of a model are created. What is left over waits
here: a *resolver* looks through the objects and gives variables that appeared the values that
wait for them. Reads, writes and steps call `settle` before they look at variables. It costs one
look at an empty list while nothing waits.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

Resolver = Callable[[], bool]

_RESOLVERS: list[Resolver] = []


class _State:
    """What was created while values wait; all of it is guarded by `lock`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_settling = False
        self.is_dirty = False
        self.unplaced: weakref.WeakSet[Any] = weakref.WeakSet()


_STATE = _State()


def register(resolver: Resolver) -> None:
    """Have ``resolver`` called when variables were created, until it returns True.

    Args:
        resolver: Looks through its objects, restores what it finds, and returns whether nothing
            waits any more. What it raises reaches whoever called `settle`, each time anew.
    """
    with _STATE.lock:
        _RESOLVERS.append(resolver)
        _STATE.is_dirty = True


def unregister(resolver: Resolver) -> None:
    """Call ``resolver`` no more; it need not be registered."""
    with _STATE.lock:
        if resolver in _RESOLVERS:
            _RESOLVERS.remove(resolver)
            _forget_if_idle()


def note_creation(variable: object | None = None) -> None:
    """Note that a variable was created.

    Args:
        variable: The new variable. It may be attached to its object later than now, so it is
            looked for until a resolver has placed it. None: it is looked for once.
    """
    if not _RESOLVERS:
        return
    with _STATE.lock:
        _STATE.is_dirty = True
        if variable is not None:
            _STATE.unplaced.add(variable)


def note_placed(variable: object) -> None:
    """Note that a resolver has found ``variable`` among its objects."""
    _STATE.unplaced.discard(variable)


def settle() -> None:
    """Give waiting values to variables that were created since the last call.

    Context: cross-replica or outside, where variables are not being traced.

    Raises:
        InvalidArgumentError: A new variable has another shape or dtype than the value that waits
            for it. The variable must not be used, so every later call raises it too.
    """
    if not _RESOLVERS:
        return
    with _STATE.lock:
        if _STATE.is_settling or not (_STATE.is_dirty or _STATE.unplaced):
            return
        _STATE.is_settling = True
        try:
            for resolver in tuple(_RESOLVERS):
                if resolver():
                    _RESOLVERS.remove(resolver)
            _STATE.is_dirty = False
            _forget_if_idle()
        finally:
            _STATE.is_settling = False


def _forget_if_idle() -> None:
    if not _RESOLVERS:
        _STATE.is_dirty = False
        _STATE.unplaced.clear()
