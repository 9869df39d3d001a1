"""What is known of a value in a program whose batch holds padding."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from replicax.errors import CallSite


@dataclasses.dataclass(frozen=True, slots=True)
class Filled:
    """The entries at padded rows do not depend on what the padding holds.

    Attributes:
        value: The number that stands in all of them, or None if that is not known.
    """

    value: Any = None


class Mark(enum.Enum):
    """What else the entries at padded rows can be."""

    ROWS = "rows"
    """They come from padding, and nothing has masked them."""
    UNSURE = "unsure"
    """Something that can tell rows apart touched them; it may or may not have masked them."""


Status: TypeAlias = Filled | Mark
"""Of the entries at padded rows, along one axis that has one entry a row."""


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """A value whose entries at real rows do not depend on padding.

    Attributes:
        axes: The axes that have one entry a row, each with what stands at padded rows. Without
            any, the whole value is free of padding.
        value: The number that stands in all entries, or None.
        blind: Axes along which the entries cannot tell rows apart: all alike, or random.
        counted: Whether the value depends on which rows are real, or on the replica.
        data: Whether the value depends on the rows of the batch.
        role: `("index", axis)`: each entry is its own place along the axis. `("mask", axis)`:
            true at real rows alone. `("count", None)`: the number of real rows.
    """

    axes: tuple[tuple[int, Status], ...] = ()
    value: Any = None
    blind: frozenset[int] = frozenset()
    counted: bool = False
    data: bool = False
    role: tuple[str, int | None] | None = None

    def at(self, axis: int) -> Status | None:
        """What stands at padded rows along an axis; None if it has no entry a row."""
        for own, status in self.axes:
            if own == axis:
                return status
        return None

    def is_blind(self, axis: int) -> bool:
        """Whether the entries cannot tell rows apart along an axis."""
        return self.value is not None or axis in self.blind

    @property
    def is_clean(self) -> bool:
        """Whether no entry depends on padding."""
        return all(isinstance(status, Filled) for _, status in self.axes)

    @property
    def may_mask(self) -> bool:
        """Whether it is made of row counts alone, so that a mask may be hidden in it."""
        return self.counted and not self.data and self.value is None


@dataclasses.dataclass(frozen=True, slots=True)
class Dirty:
    """A value into which padding was mixed for certain.

    Attributes:
        what: What mixed it in, such as "sum over the rows".
        call_site: The line that did.
        local: Whether replicas have not been combined since.
        single: Whether replicas hold one row each, so that it is right where the row is real.
    """

    what: str
    call_site: CallSite | None
    local: bool = True
    single: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Unknown:
    """A value of which nothing can be said. Never an error.

    Attributes:
        why: The primitive for which there is no rule.
    """

    why: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """A value joined of several along an axis; each part keeps what is known of it.

    Attributes:
        dimension: The axis.
        parts: Length and state of each.
    """

    dimension: int
    parts: tuple[tuple[int, State], ...]


State: TypeAlias = Known | Dirty | Unknown | Parts

CLEAN = Known()
COUNTED = Known(counted=True)
COUNT = Known(counted=True, role=("count", None))
UNKNOWN = Unknown()


def constant(value: Any) -> Known:
    """One number everywhere."""
    return Known(value=value)


def padded(rank: int) -> Known:
    """An argument of the replica function with padding along axis 0."""
    return Known(axes=((0, Mark.ROWS),), data=True) if rank else UNKNOWN_ROW


UNKNOWN_ROW = Known(data=True)


def made(
    axes: Mapping[int, Status | None],
    operands: Iterable[Known],
    *,
    blind: Iterable[int] = (),
    role: tuple[str, int | None] | None = None,
) -> Known:
    """A value computed from operands, with the given axes."""
    operands = list(operands)
    return Known(
        axes=tuple(sorted((axis, s) for axis, s in axes.items() if s is not None)),
        blind=frozenset(blind),
        counted=any(x.counted for x in operands),
        data=any(x.data for x in operands),
        role=role,
    )


def moved(
    state: Known, places: Mapping[int, int], *, blind: Iterable[int] = (), why: str = ""
) -> Known | Unknown:
    """The same entries with their axes at other places.

    An axis without a place is lost: that is harmless if its padded rows are filled.

    Args:
        state: The value.
        places: New place of each axis that is left.
        blind: New axes that cannot tell rows apart.
        why: The primitive, for `Unknown`.
    """
    if any(axis not in places and not isinstance(s, Filled) for axis, s in state.axes):
        return Unknown(why)
    role = state.role
    if role is not None and role[1] is not None:
        role = (role[0], places[role[1]]) if role[1] in places else None
    return dataclasses.replace(
        state,
        axes=tuple(sorted((places[axis], s) for axis, s in state.axes if axis in places)),
        blind=frozenset({places[a] for a in state.blind if a in places}.union(blind)),
        role=role,
    )


def same(left: Any, right: Any) -> bool:
    """Whether two numbers are known and equal."""
    return left is not None and right is not None and bool(left == right)


def filling(state: Known, axis: int) -> Filled | None:
    """What stands at padded rows, if no padding does; a value without that axis is as it is."""
    status = state.at(axis)
    if status is None:
        return Filled(state.value)
    return status if isinstance(status, Filled) else None


def joined(left: State, right: State) -> State:
    """Either of two values, as a loop or a branch gives."""
    if left == right:
        return left
    left, right = collapsed(left), collapsed(right)
    for kind in (Dirty, Unknown):
        for state in (left, right):
            if isinstance(state, kind):
                return state
    assert isinstance(left, Known)  # noqa: S101 - for the type checker
    assert isinstance(right, Known)  # noqa: S101
    return _joined_known((left, right), partial=False)


def collapsed(state: State) -> State:
    """One state for a value of several parts."""
    if not isinstance(state, Parts):
        return state
    states = [collapsed(part) for _, part in state.parts]
    if all(isinstance(part, Dirty) for part in states):
        return states[0]
    known = [part for part in states if isinstance(part, Known)]
    if len(known) < len(states):
        return Unknown("concatenate")
    along = (part.at(state.dimension) for part in known)
    if any(isinstance(status, Mark) for status in along):
        return Unknown("concatenate")
    parts = [moved(part, _except(part, state.dimension)) for part in known]
    return _joined_known([part for part in parts if isinstance(part, Known)], partial=True)


def _except(part: Known, dimension: int) -> dict[int, int]:
    axes = {axis for axis, _ in part.axes} | part.blind
    return {axis: axis for axis in axes if axis != dimension}


def _joined_known(states: Sequence[Known], *, partial: bool) -> Known:
    """Either of the values, or (partial) some entries of each."""
    axes = {axis: _joined_status(states, axis, partial) for s in states for axis, _ in s.axes}
    first = states[0]
    value = first.value if all(same(first.value, s.value) for s in states) else None
    every = {axis for s in states for axis in s.blind}
    role = first.role if not partial and all(s.role == first.role for s in states) else None
    return dataclasses.replace(
        made(axes, states, role=role),
        value=value,
        blind=frozenset(axis for axis in every if all(s.is_blind(axis) for s in states)),
    )


def _joined_status(states: Sequence[Known], axis: int, partial: bool) -> Status:  # noqa: FBT001
    found = [state.at(axis) for state in states]
    fillings = [filling(state, axis) for state in states]
    if None not in fillings:
        values = [f.value for f in fillings if f is not None]
        return Filled(values[0] if all(same(values[0], v) for v in values) else None)
    if all(status is Mark.ROWS for status in found):
        return Mark.ROWS
    if partial or any(status is not None and status is not Mark.ROWS for status in found):
        return Mark.UNSURE
    # A loop that starts from zeros and leaves rows: they are rows once it has run.
    harmless = all(s.at(axis) is not None or not s.may_mask for s in states)
    return Mark.ROWS if harmless else Mark.UNSURE
