"""The parts of jax that this package uses although they have no public name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def production_order(values: Sequence[Any]) -> list[int]:
    """The order in which the running trace computed some values. Context: any.

    Args:
        values: Arrays or tracers.

    Returns:
        For each value the number of its equation in the trace; -1 for what no equation of the
        innermost trace made: arguments, constants, arrays, and what a derivative or a batch
        wraps.
    """
    places: dict[int, dict[int, int]] = {}
    found = []
    for value in values:
        equation = getattr(value, "parent", None)
        frame = getattr(getattr(value, "_trace", None), "frame", None)
        listed = getattr(frame, "tracing_eqns", None)
        if equation is None or listed is None:
            found.append(-1)
            continue
        if id(listed) not in places:
            places[id(listed)] = _places(listed)
        found.append(places[id(listed)].get(id(equation), -1))
    return found


def _places(equations: Sequence[Any]) -> dict[int, int]:
    """Where each living equation stands, by its identity; most are kept as weak references."""
    living = (each() if callable(each) else each for each in equations)
    return {id(each): number for number, each in enumerate(living) if each is not None}
