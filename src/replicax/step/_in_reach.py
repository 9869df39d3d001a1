"""Objects of model libraries that a function names, lifted before it is traced.

The variables of such an object may be lifted when a step first meets them. They are no inputs of
that trace, so it has to be made anew. What a function closes over, and the globals that it names,
are most of what it can meet; what is not found here costs that second trace, and nothing else.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from replicax.errors import is_user_file
from replicax.step._bound_objects import cells_of, globals_of
from replicax.values._foreign import knows_holders, parts_of_foreign

_DEPTH = 6
_MOST = 100  # of a list
_MOST_OF_ALL = 5000


def lift_in_reach(fn: Callable[..., Any]) -> None:
    """Lift the variables of the objects that a function names, and of those in what it calls."""
    if knows_holders():
        _look(fn, set(), _DEPTH)


def _look(value: Any, seen: set[int], depth: int) -> None:
    if id(value) in seen or not depth or len(seen) > _MOST_OF_ALL:
        return
    seen.add(id(value))
    if parts_of_foreign(value) is not None:
        return
    for inner in _inside(value):
        _look(inner, seen, depth - 1)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, (list, tuple, dict)):
        within = value.values() if isinstance(value, dict) else value
        return list(itertools.islice(within, _MOST))
    if isinstance(value, weakref.ref):  # To the object whose method it is; see `_static.bound_to`.
        return _fields(value())
    if isinstance(value, types.MethodType):
        return [value.__func__, *_fields(value.__self__)]
    if not isinstance(value, types.FunctionType):
        return _fields(value) if _is_of_users_class(value) else []
    inner = [*cells_of(value), getattr(value, "__wrapped__", None)]
    return [*inner, *globals_of(value)] if is_user_file(value.__code__.co_filename) else inner


def _fields(value: Any) -> Iterable[Any]:
    fields: dict[str, Any] = getattr(value, "__dict__", {})
    return list(fields.values())


def _is_of_users_class(value: Any) -> bool:
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_user_file(file)
