"""An `rx.function` as a method of an object."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replicax.step._function import Function


class BoundFunction:
    """An `rx.function` that is a method, with its object."""

    def __init__(self, function: Function, instance: Any) -> None:
        self._function = function
        self.__self__ = instance
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __repr__(self) -> str:
        return repr(self._function)


def reference(instance: Any, at_end: Callable[[Any], Any]) -> Callable[[], Any]:
    """A reference that does not keep the object alive, where there can be one."""
    try:
        return weakref.ref(instance, at_end)
    except TypeError:  # Its class has slots.
        return lambda: instance
