"""Variables of model libraries, as variables of Replicax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KINDS: list[tuple[Callable[[Any], bool], Callable[[Any], Any]]] = []


def register_foreign(is_kind: Callable[[Any], bool], lift: Callable[[Any], Any]) -> None:
    """Take variables of a library where variables are asked for.

    Args:
        is_kind: Whether an object is a variable of the library.
        lift: Gives the `Variable` that stands for it.
    """
    _KINDS.append((is_kind, lift))


def as_variable(leaf: Any) -> Any:
    """The variable that stands for a library's; anything else as it is."""
    for is_kind, lift in _KINDS:
        if is_kind(leaf):
            return lift(leaf)
    return leaf
