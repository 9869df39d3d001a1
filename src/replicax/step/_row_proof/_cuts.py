"""Primitives that cut values apart and join them: slices, concatenations, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._elementwise import opened
from ._shapes import rearranged
from ._states import (
    Filled,
    Known,
    Mark,
    Parts,
    State,
    Status,
    Unknown,
    collapsed,
    filling,
    made,
    same,
)

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

    from ._scope import Rule, Scope


def slice_(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Axes that are taken whole stay; of a joined value the right part is taken."""
    start, stop = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(start)
    state, shape = states[0], list(scope.shape(eqn.invars[0]))
    whole = [
        (begin, end, step) == (0, size, 1)
        for begin, end, step, size in zip(start, stop, strides, shape, strict=True)
    ]
    if isinstance(state, Parts):
        cut = state.dimension
        part = _part_at(state, start[cut], stop[cut])
        if part is not None:
            state, size = part
            whole[cut] = stop[cut] - start[cut] == size and strides[cut] == 1
    return [_sliced(eqn, state, whole)]


def split(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Slices next to each other."""
    axis, state, shape = eqn.params["axis"], states[0], scope.shape(eqn.invars[0])
    found, start = [], 0
    for size in map(int, eqn.params["sizes"]):
        piece, length = state, shape[axis]
        if isinstance(state, Parts) and state.dimension == axis:
            piece, length = _part_at(state, start, start + size) or (state, length)
        whole = [other != axis or size == length for other in range(len(shape))]
        found.append(_sliced(eqn, piece, whole))
        start += size
    return found


def _part_at(state: Parts, start: int, stop: int) -> tuple[State, int] | None:
    """The part in which a slice lies, and its length."""
    begin = 0
    for size, part in state.parts:
        if begin <= start and stop <= begin + size:
            return part, size
        begin += size
    return None


def _sliced(eqn: JaxprEqn, state: State, whole: Sequence[bool]) -> State:
    state = collapsed(state)
    blind = [axis for axis in getattr(state, "blind", ()) if not whole[axis]]
    places = {axis: axis for axis, is_whole in enumerate(whole) if is_whole}
    return rearranged(eqn, state, places, blind=blind)


def reverse(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Rows that change places are no longer told from padding."""
    turned = eqn.params["dimensions"]
    whole = [axis not in turned for axis in range(len(scope.shape(eqn.invars[0])))]
    return [_sliced(eqn, states[0], whole)]


def dynamic_slice(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """As `slice`, from a place that is computed."""
    old, new = scope.shape(eqn.invars[0]), scope.shape(eqn.outvars[0])
    bad, operands = opened("dynamic_slice", states)
    if bad is not None:
        return [bad]
    result = _sliced(eqn, states[0], [a == b for a, b in zip(old, new, strict=True)])
    return [_told_apart(result, operands[1:])]


def _told_apart(result: State, places: Sequence[Known]) -> State:
    """What is taken from a place that is made of row counts is made of them, too."""
    if not isinstance(result, Known) or result.value is not None:
        return result
    axes = dict(result.axes)
    blind = result.blind if not any(place.may_mask for place in places) else ()
    return made(axes, [result, *places], blind=blind)


def dynamic_update_slice(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Some entries of each."""
    bad, known = opened("dynamic_update_slice", states)
    if bad is not None:
        return [bad if isinstance(bad, Unknown) else Unknown("dynamic_update_slice")]
    shapes = [scope.shape(atom) for atom in eqn.invars[:2]]
    whole = [a == b for a, b in zip(*shapes, strict=True)]
    return [_some_of_each("dynamic_update_slice", known[:2], whole, known[2:])]


def _some_of_each(
    why: str, known: Sequence[Known], whole: Sequence[bool], others: Sequence[Known] = ()
) -> State:
    """Entries of one value among those of another, each whole along some axes."""
    axes: dict[int, Status | None] = {}
    for axis in {axis for state in known for axis, _ in state.axes}:
        fillings = [filling(state, axis) for state in known]
        if not whole[axis]:
            if None in fillings:
                return Unknown(why)
            continue
        if None not in fillings:
            values = [f.value for f in fillings if f is not None]
            axes[axis] = Filled(values[0] if all(same(values[0], v) for v in values) else None)
        elif all(state.at(axis) is Mark.ROWS for state in known):
            axes[axis] = Mark.ROWS
        else:
            axes[axis] = Mark.UNSURE
    return made(axes, [*known, *others])


def concatenate(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Parts side by side, each with its own state."""
    dimension = eqn.params["dimension"]
    if len(states) == 1:
        return states
    first = states[0]
    alike = all(state == first for state in states) and isinstance(first, Known)
    if alike and isinstance(first, Known) and first.at(dimension) is None:
        role = first.role is None or first.role == ("count", None)
        if role and dimension not in first.blind:
            return [first]
    sizes = [scope.shape(atom)[dimension] for atom in eqn.invars]
    return [Parts(dimension, tuple(zip(sizes, states, strict=True)))]


def stack(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Parts side by side along a new axis."""
    axis, rank = eqn.params["axis"], len(scope.shape(eqn.invars[0]))
    places = {old: old + (old >= axis) for old in range(rank)}
    return [Parts(axis, tuple((1, rearranged(eqn, state, places)) for state in states))]


def unstack(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """The parts along an axis, without it."""
    axis, rank, state = eqn.params["axis"], len(scope.shape(eqn.invars[0])), states[0]
    places = {old: old - (old > axis) for old in range(rank) if old != axis}
    found = []
    for number in range(len(eqn.outvars)):
        part = (state, 1)
        if isinstance(state, Parts) and state.dimension == axis:
            part = _part_at(state, number, number + 1) or part
        found.append(rearranged(eqn, part[0], places))
    return found


def pad(_scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """More entries along some axes."""
    bad, known = opened("pad", states)
    if bad is not None:
        return [bad]
    if same(known[0].value, known[1].value):
        return [known[0]]
    axes: dict[int, Status | None] = {}
    whole = [tuple(amounts) == (0, 0, 0) for amounts in eqn.params["padding_config"]]
    for axis, status in known[0].axes:
        if not whole[axis]:
            if isinstance(status, Filled):
                continue
            return [Unknown("pad")]
        is_kept = isinstance(status, Mark) or same(status.value, known[1].value)
        axes[axis] = status if is_kept else Filled()
    blind = [axis for axis, is_whole in enumerate(whole) if is_whole and known[0].is_blind(axis)]
    return [made(axes, known, blind=blind)]


def tile(_scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Copies side by side."""
    return [_sliced(eqn, states[0], [count == 1 for count in eqn.params["reps"]])]


CUT_RULES: dict[str, Rule] = {
    "concatenate": concatenate,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "pad": pad,
    "rev": reverse,
    "slice": slice_,
    "split": split,
    "stack": stack,
    "tile": tile,
    "unstack": unstack,
}
