"""Variables of model libraries, and objects that hold them, as variables of Replicax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_KINDS: list[tuple[Callable[[Any], bool], Callable[[Any], Any]]] = []

Parts = Sequence[tuple[str, Any]]
"""Variables by their place in an object, such as ``.layers[0].kernel``."""

_HOLDERS: list[Callable[[Any], Parts | None]] = []


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


def register_holder(parts: Callable[[Any], Parts | None]) -> None:
    """Take an object of a library for the variables in it, where state is saved and restored.

    Args:
        parts: The variables of an object; None of what is no object of the library, or whose state
            does not lie in variables.
    """
    _HOLDERS.append(parts)


def knows_holders() -> bool:
    """Whether objects of some library are known."""
    return bool(_HOLDERS)


def parts_of_foreign(value: Any) -> Parts | None:
    """The variables of a library's object; None of anything else."""
    for parts in _HOLDERS:
        found = parts(value)
        if found is not None:
            return found
    return None
