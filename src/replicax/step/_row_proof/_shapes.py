"""Primitives that move entries: broadcasts, transpositions, reshapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ._elementwise import opened
from ._states import Known, Parts, State, Unknown, collapsed, constant, made, moved

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

    from ._scope import Rule, Scope


def rearranged(
    eqn: JaxprEqn, state: State, places: Mapping[int, int], *, blind: Sequence[int] = ()
) -> State:
    """One operand with its axes at other places; a number that stands everywhere stays."""
    state = collapsed(state)
    if not isinstance(state, Known) or state.value is not None:
        return state
    return moved(state, places, blind=blind, why=eqn.primitive.name)


def broadcast_in_dim(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """New axes hold the same for all rows."""
    state, old, new = states[0], scope.shape(eqn.invars[0]), scope.shape(eqn.outvars[0])
    kept = [int(axis) for axis in eqn.params["broadcast_dimensions"]]
    if isinstance(state, Parts) and old[state.dimension] == new[kept[state.dimension]]:
        parts = [
            (size, _broadcast(eqn, part, kept, old, new, cut=state.dimension))
            for size, part in state.parts
        ]
        return [Parts(kept[state.dimension], tuple(parts))]
    return [_broadcast(eqn, state, kept, old, new)]


def _broadcast(
    eqn: JaxprEqn,
    state: State,
    kept: Sequence[int],
    old: Sequence[int],
    new: Sequence[int],
    *,
    cut: int | None = None,
) -> State:
    places = {i: axis for i, axis in enumerate(kept) if old[i] == new[axis] or i == cut}
    widened = {axis for axis in range(len(new)) if axis not in places.values()}
    return rearranged(eqn, state, places, blind=sorted(widened))


def transpose(_scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Axes change places."""
    order = eqn.params["permutation"]
    return [rearranged(eqn, states[0], {axis: place for place, axis in enumerate(order)})]


def squeeze(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Axes of length 1 go."""
    gone = eqn.params["dimensions"]
    left = [axis for axis in range(len(scope.shape(eqn.invars[0]))) if axis not in gone]
    return [rearranged(eqn, states[0], {axis: place for place, axis in enumerate(left)})]


def reshape(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """An axis stays if it has its length and as many entries before it."""
    old, new = scope.shape(eqn.invars[0]), scope.shape(eqn.outvars[0])
    if old == new:
        return states
    if eqn.params.get("dimensions") is not None:
        return default(scope, eqn, states)
    before = {(math.prod(new[:axis]), size): axis for axis, size in reversed([*enumerate(new)])}
    places = {
        axis: before[math.prod(old[:axis]), size]
        for axis, size in enumerate(old)
        if (math.prod(old[:axis]), size) in before
    }
    state = collapsed(states[0])
    is_blind = isinstance(state, Known) and all(state.is_blind(axis) for axis in range(len(old)))
    # An axis of length 1 cannot tell rows apart either.
    blind = [axis for axis, size in enumerate(new) if is_blind or size == 1]
    return [rearranged(eqn, state, places, blind=blind)]


def iota(scope: Scope, eqn: JaxprEqn, _states: Sequence[State]) -> Sequence[State]:
    """Places along an axis."""
    axis, shape = eqn.params["dimension"], scope.shape(eqn.outvars[0])
    blind = frozenset(other for other in range(len(shape)) if other != axis)
    return [Known(blind=blind, role=("index", axis))]


def one_by_one(_scope: Scope, _eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Result i is operand i."""
    return states


def default(_scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Any function: what no padding goes into, no padding comes out of."""
    name = eqn.primitive.name
    bad, known = opened(name, states)
    if bad is None and not all(state.is_clean for state in known):
        bad = Unknown(name)
    return [made({}, known) if bad is None else bad] * len(eqn.outvars)


def full(_scope: Scope, eqn: JaxprEqn, _states: Sequence[State]) -> Sequence[State]:
    """Zeros."""
    return [constant(0)] * len(eqn.outvars)


SHAPE_RULES: dict[str, Rule] = {
    "broadcast_in_dim": broadcast_in_dim,
    "device_put": one_by_one,
    "iota": iota,
    "optimization_barrier": one_by_one,
    "reshape": reshape,
    "squeeze": squeeze,
    "transpose": transpose,
    "zeros_like": full,
}
