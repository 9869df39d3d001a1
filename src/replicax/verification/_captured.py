"""Numbers of replicas that a step took from outside, and which stay what they are on one device."""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from replicax.step import Function
from replicax.step._methods import BoundFunction

# Another number that is equal by chance must not be taken for one.
_NAME = re.compile(r"repl|device|gpu|world|worker|shard", re.IGNORECASE)
_DEPTH = 6

Setter = Callable[[Any], None]
Captured = dict[str, tuple[Any, Setter]]
"""For each name what it holds, and what sets it."""


def number_of_replicas(step: Any, replicas: int) -> Captured:
    """The names in a step's closures and globals that hold the number of replicas, or 1 over it.

    Args:
        step: The step.
        replicas: The number.

    Returns:
        What was found.
    """
    found: Captured = {}
    _look(step, replicas, found, set(), _DEPTH)
    return found


@contextlib.contextmanager
def as_one(names: Captured) -> Iterator[None]:
    """While inside, the names hold what they would hold with one replica."""
    try:
        for value, set_value in names.values():
            set_value(type(value)(1))
        yield
    finally:
        for value, set_value in names.values():
            set_value(value)


def _look(value: Any, replicas: int, found: Captured, seen: set[int], depth: int) -> None:
    if isinstance(value, (Function, BoundFunction)):
        value = value.fn
    code = getattr(value, "__code__", None)
    if not isinstance(code, types.CodeType) or id(value) in seen or not depth:
        return
    seen.add(id(value))
    for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            held = cell.cell_contents
            if _is_number(name, held, replicas):
                found[name] = (held, _of_cell(cell))
            _look(held, replicas, found, seen, depth - 1)
    names = value.__globals__
    for name in _names(code):
        if name in names:
            if _is_number(name, names[name], replicas):
                found[name] = (names[name], _of_globals(names, name))
            _look(names[name], replicas, found, seen, depth - 1)


def _is_number(name: str, value: Any, replicas: int) -> bool:
    if type(value) not in (int, float) or not _NAME.search(name):
        return False
    return bool(value in (replicas, 1 / replicas))


def _of_cell(cell: Any) -> Setter:
    def set_value(value: Any) -> None:
        cell.cell_contents = value

    return set_value


def _of_globals(names: dict[str, Any], name: str) -> Setter:
    def set_value(value: Any) -> None:
        names[name] = value

    return set_value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
