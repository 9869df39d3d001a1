"""Primitives of which entry i of the result is made of entries i of the operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replicax.step._proof._primitives import ARITHMETIC, TYPE_CASTS

from ._constants import IDENTITIES, evaluated
from ._states import (
    Dirty,
    Filled,
    Known,
    Mark,
    Parts,
    State,
    Status,
    Unknown,
    collapsed,
    constant,
    filling,
    made,
    same,
)

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

    from ._scope import Rule, Scope

_RANDOM_BITS = frozenset({"philox2x32", "philox4x32", "threefry2x32", "threefry4x32"})
_ADDITIONS = frozenset({"add", "add_any", "sub"})
_FACTORS = frozenset({"and", "conv_general_dilated", "dot_general", "mul", "select_n"})
_ABSORBED_BY_ZERO = frozenset({"mul", "and"})


def elementwise(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """The common case. The operands have one shape, or are scalars."""
    name = eqn.primitive.name
    if any(isinstance(state, Parts) for state in states):
        split = _by_parts(scope, eqn, states)
        if split is not None:
            return [split] * len(eqn.outvars)
        states = [collapsed(state) for state in states]
    return [_of_states(scope, name, eqn, states)] * len(eqn.outvars)


def select(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """`select_n`: a mask as the predicate puts the first case at padded rows."""
    which, *cases = states
    if isinstance(which, Known) and which.value is not None:
        return [cases[int(which.value)]]
    return elementwise(scope, eqn, states)


def mixed(name: str, operands: Sequence[State]) -> State | None:
    """The result if an operand is unknown or dirty, else None.

    A mask of whole replicas may let a dirty value through only where it is right.
    """
    for state in operands:
        if isinstance(state, Unknown):
            return state
    dirty = next((state for state in operands if isinstance(state, Dirty)), None)
    if dirty is None:
        return None
    others = [state for state in operands if isinstance(state, Known)]
    for other in others:
        if other.axes and dirty.single and dirty.local and (other.counted or other.is_clean):
            return Unknown(name)
        is_count = other.role is not None and other.role[0] == "count"
        if name in _FACTORS and not other.axes and other.may_mask and not is_count:
            return Unknown(name)
    return dirty


def opened(name: str, states: Sequence[State]) -> tuple[State | None, list[Known]]:
    """The result if an operand is unknown or dirty, and else all operands."""
    states = [collapsed(state) for state in states]
    return mixed(name, states), [state for state in states if isinstance(state, Known)]


def combined(
    name: str, params: Any, operands: Sequence[Known], axis: int, dtype: Any = None
) -> Status:
    """What stands at padded rows of the result, along an axis with one entry a row."""
    fillings = [filling(state, axis) for state in operands]
    if _is_absorbed(name, fillings):
        return Filled(0)
    if None not in fillings:
        if dtype is None:
            return Filled()
        return Filled(evaluated(name, params, [f.value for f in fillings if f], dtype))
    return _with_rows(operands, axis, zeros_are_harmless=name in _ADDITIONS)


def _with_rows(operands: Sequence[Known], axis: int, *, zeros_are_harmless: bool) -> Status:
    """The same, where the entries of some operand come from padding."""
    for state in operands:
        status = state.at(axis)
        if status is Mark.UNSURE:
            return Mark.UNSURE
        if status is None and not state.is_blind(axis) and not zeros_are_harmless:
            return Mark.UNSURE  # Some of its entries may be zero, to pick rows.
        if status is None and state.may_mask:
            return Mark.UNSURE
        is_zero = zeros_are_harmless and isinstance(status, Filled) and same(status.value, 0)
        if isinstance(status, Filled) and not is_zero:
            return Mark.UNSURE
    return Mark.ROWS


def _of_states(scope: Scope, name: str, eqn: JaxprEqn, states: Sequence[State]) -> State:
    if name in _ABSORBED_BY_ZERO and any(isinstance(s, Known) and same(s.value, 0) for s in states):
        return constant(0)
    bad = mixed(name, states)
    if bad is not None:
        return bad
    aval: Any = eqn.outvars[0].aval
    ranks = [len(scope.shape(atom)) for atom in eqn.invars]
    operands = [
        _spread(state, rank, len(aval.shape))
        for state, rank in zip(states, ranks, strict=True)
        if isinstance(state, Known)
    ]
    value = _single_value(name, eqn.params, operands, aval.dtype)
    if value is not None:
        return constant(value)
    mask = _mask(scope, name, eqn, operands)
    if mask is not None:
        return mask
    axes: dict[int, Status | None] = {}
    for axis in {axis for state in operands for axis, _ in state.axes}:
        if name == "select_n":
            axes[axis] = _selected(eqn.params, operands, axis)
        else:
            axes[axis] = combined(name, eqn.params, operands, axis, aval.dtype)
    every = range(len(aval.shape))
    blind = [axis for axis in every if all(s.is_blind(axis) for s in operands)]
    role = operands[0].role if name in IDENTITIES else None
    return made(axes, operands, role=role, blind=every if name in _RANDOM_BITS else blind)


def _spread(state: Known, rank: int, wanted: int) -> Known:
    """A scalar has one entry for all rows."""
    if rank or not wanted or state.value is not None:
        return state
    return Known(
        blind=frozenset(range(wanted)), counted=state.counted, data=state.data, role=state.role
    )


def _single_value(name: str, params: Any, operands: Sequence[Known], dtype: Any) -> Any:
    values = [state.value for state in operands]
    if name != "select_n" and None not in values:
        return evaluated(name, params, values, dtype)
    index = operands[0].role
    is_index = name in {"lt", "ge"} and index is not None and index[0] == "index"
    if is_index and values[1] is not None and values[1] <= 0:  # No place is negative.
        return float(name == "ge")
    return None


def _mask(scope: Scope, name: str, eqn: JaxprEqn, operands: Sequence[Known]) -> Known | None:
    """Recognises `arange(rows) < number of real rows`."""
    if name in {"gt", "le"}:
        operands = operands[::-1]
        name = {"gt": "lt", "le": "ge"}[name]
    if name not in {"lt", "ge"}:
        return None
    index, count = (state.role for state in operands)
    if index is None or index[0] != "index" or count != ("count", None):
        return None
    axis = index[1]
    if axis is None or scope.shape(eqn.outvars[0])[axis] != scope.shared.capacity:
        return None
    role = ("mask", axis) if name == "lt" else None
    return made({axis: Filled(int(name == "ge"))}, operands, role=role, blind=operands[0].blind)


def _selected(params: Any, operands: Sequence[Known], axis: int) -> Status:
    which, *cases = operands
    chosen = which.at(axis)
    if isinstance(chosen, Filled) and chosen.value is not None:
        found = filling(cases[int(chosen.value)], axis)
        return Mark.UNSURE if found is None else found
    fillings = [filling(case, axis) for case in cases]
    first = fillings[0]
    if first is not None and all(f is not None and same(first.value, f.value) for f in fillings):
        return first
    return combined("select_n", params, operands, axis)


def _is_absorbed(name: str, fillings: Sequence[Filled | None]) -> bool:
    zeros = [f is not None and same(f.value, 0) for f in fillings]
    return any(zeros) if name in _ABSORBED_BY_ZERO else name == "div" and zeros[0]


def _by_parts(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Parts | None:
    """Part by part, where the operands are cut alike or are the same along the cut."""
    layouts = {
        (state.dimension, tuple(size for size, _ in state.parts))
        for state in states
        if isinstance(state, Parts)
    }
    if len(layouts) > 1:
        return None
    ((dimension, sizes),) = layouts
    for state in states:
        if isinstance(state, Known) and dimension in {axis for axis, _ in state.axes}:
            return None
    found = [
        (size, _of_states(scope, eqn.primitive.name, eqn, [_part(state, i) for state in states]))
        for i, size in enumerate(sizes)
    ]
    return Parts(dimension, tuple(found))


def _part(state: State, number: int) -> State:
    return collapsed(state.parts[number][1]) if isinstance(state, Parts) else state


ELEMENTWISE: frozenset[str] = (
    ARITHMETIC | TYPE_CASTS | IDENTITIES | _RANDOM_BITS | {"bitcast_convert_type"}
) - {"select_n"}

ELEMENTWISE_RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    "select_n": select,
}
