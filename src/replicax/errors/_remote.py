"""An exception of another worker, as an instance of the user's class too.

Only names cross the wire. The class is looked up among the modules that this process has
imported already: nothing is imported for it, and nothing is unpickled.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from ._origin import Origin
from ._tree import WorkerFailedError


def worker_failed(
    message: str,
    *,
    origin: Origin | None = None,
    kind: str = "lost",
    remote_traceback: str | None = None,
    remote_class: str | None = None,
) -> WorkerFailedError:
    """Builds the error for the failure of another worker. Context: any.

    Args:
        message: What happened.
        origin: Who failed, and at which step.
        kind: How it failed; see `WorkerFailedError`.
        remote_traceback: The traceback of the other worker.
        remote_class: The class that the other worker raised, as `module:qualified.name`.

    Returns:
        A `WorkerFailedError`. It is an instance of the remote class too where this process has
        imported a class of that name, and the two can be combined.

    Examples:
        >>> error = worker_failed("Worker 1 failed.", kind="exception", remote_class="builtins:KeyError")
        >>> isinstance(error, KeyError), isinstance(error, WorkerFailedError)
        (True, True)
        >>> type(worker_failed("Worker 1 failed.", remote_class="no_such_module:Oops")).__name__
        'WorkerFailedError'
    """  # noqa: E501 - a line of a doctest
    plain = WorkerFailedError(message, origin=origin, kind=kind, remote_traceback=remote_traceback)
    cls = _combined(remote_class)
    if cls is None:
        return plain
    try:
        both = cls(message, origin=origin, kind=kind, remote_traceback=remote_traceback)
        str(both)
    except Exception:  # noqa: BLE001 - a class of the user's may refuse anything
        return plain
    return both


def _combined(name: str | None) -> type[WorkerFailedError] | None:
    """The class for a remote class; None where there is nothing to combine."""
    found: Any = _find(name) if name is not None else None
    if (
        found is None
        or issubclass(WorkerFailedError, found)
        or issubclass(found, WorkerFailedError)
    ):
        return None
    return _combine(found, str(name))


def _find(name: str) -> type[Exception] | None:
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    # SystemExit or KeyboardInterrupt would end this process in silence.
    is_usable = isinstance(found, type) and issubclass(found, Exception)
    return found if is_usable else None


@functools.cache
def _combine(cls: Any, name: str) -> type[WorkerFailedError] | None:
    def reduce(self: WorkerFailedError) -> tuple[Any, ...]:
        _, (_, args), state = WorkerFailedError.__reduce__(self)
        return _rebuild, (name, args), state

    def new(both: type[WorkerFailedError], *_: Any, **__: Any) -> Any:
        return cls.__new__(both)  # The class that decides about the layout, as of an OSError.

    body = {
        "__new__": new,
        "__reduce__": reduce,
        "__doc__": cls.__doc__,
        "__module__": "replicax.errors",
    }
    try:
        return type(f"WorkerFailedError({cls.__name__})", (WorkerFailedError, cls), body)
    except TypeError:  # Another metaclass, or another layout.
        return None


def _rebuild(name: str, args: tuple[Any, ...]) -> WorkerFailedError:
    """Unpickles: where the class is not known, the plain one has all that was in it."""
    cls = _combined(name) or WorkerFailedError
    error = cls.__new__(cls)
    error.args = args
    return error
