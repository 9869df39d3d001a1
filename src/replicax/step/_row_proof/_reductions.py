"""Primitives that combine entries along axes: sums, cumulative sums, sorts, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from replicax.step import _compat

from ._elementwise import combined, mixed, opened
from ._shapes import rearranged
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
    made,
    same,
)

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

    from ._scope import Rule, Scope

_WORDS = {
    "reduce_prod": "product of the rows",
    "reduce_sum": "sum or mean over the rows",
    "reduce_xor": "xor over the rows",
}
# Padding repeats a row of the global batch, which changes no maximum of it: they may be right.
_HARMLESS = frozenset(["argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or"])
_KEEPS: dict[str, Callable[[Any], bool]] = {
    "reduce_sum": lambda x: x == 0,
    "reduce_prod": lambda x: x in {0, 1},
    "reduce_and": lambda _: True,
    "reduce_max": lambda _: True,
    "reduce_min": lambda _: True,
    "reduce_or": lambda _: True,
    "cumsum": lambda x: x == 0,
    "cumprod": lambda x: x in {0, 1},
    "cummax": lambda _: True,
    "cummin": lambda _: True,
    "fft": lambda x: x == 0,
}


def dirt(eqn: JaxprEqn, what: str, *, rows: int) -> Dirty:
    """Rows were combined, padding among them."""
    return Dirty(what, _compat.equation_site(eqn), single=rows == 1)


def reduce(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """A reduction over axes; over rows it mixes padding in."""
    axes = tuple(eqn.params["axes" if "axes" in eqn.params else "dimensions"])
    if len(states) > 1:
        return _reduce_by_function(scope, eqn, states, axes)
    state = states[0]
    if isinstance(state, Parts) and state.dimension not in axes:
        dimension = state.dimension - sum(axis < state.dimension for axis in axes)
        parts = [(size, _reduced(scope, eqn, collapsed(part), axes)) for size, part in state.parts]
        return [Parts(dimension, tuple(parts))]
    if isinstance(state, Parts) and eqn.primitive.name in _WORDS:
        parts_in = [collapsed(part) for _, part in state.parts]
        bad = mixed(eqn.primitive.name, parts_in)
        if bad is not None:
            return [bad]
    return [_reduced(scope, eqn, collapsed(state), axes)]


def _reduced(scope: Scope, eqn: JaxprEqn, state: State, axes: Sequence[int]) -> State:
    if not isinstance(state, Known):
        return state
    name, operand = eqn.primitive.name, eqn.invars[0]
    shape = scope.shape(operand)
    found = [state.at(axis) for axis in axes]
    if Mark.UNSURE in found or (Mark.ROWS in found and name not in _WORDS):
        return Unknown(name)
    if Mark.ROWS in found:
        return dirt(eqn, _WORDS[name], rows=shape[axes[found.index(Mark.ROWS)]])
    left = [axis for axis in range(len(shape)) if axis not in axes]
    places = {axis: place for place, axis in enumerate(left)}
    if state.value is not None:
        kept = _KEEPS.get(name, _never)(state.value)
        return Known(value=state.value if kept else None, blind=frozenset(range(len(left))))
    result = rearranged(eqn, kept_values(state, name), places)
    if isinstance(result, Known) and name == "reduce_sum" and len(shape) == 1:
        return made({}, [result], role=("count", None) if state.role == ("mask", 0) else None)
    return result


def kept_values(state: Known, name: str) -> Known:
    """The state with the numbers at padded rows that survive the primitive."""
    keeps = _KEEPS.get(name, _never)
    axes: dict[int, Status | None] = {}
    for axis, status in state.axes:
        is_kept = isinstance(status, Mark) or (status.value is not None and keeps(status.value))
        axes[axis] = status if is_kept else Filled()
    return made(axes, [state], blind=state.blind)


def _never(_value: Any) -> bool:
    return False


def _reduce_by_function(
    scope: Scope, eqn: JaxprEqn, states: Sequence[State], axes: Sequence[int]
) -> Sequence[State]:
    """`reduce` with a function of the user: nothing is known of it but which axes it reads."""
    name = eqn.primitive.name
    bad, operands = opened(name, states)
    if bad is not None:
        return [bad] * len(eqn.outvars)
    rank = len(scope.shape(eqn.invars[0]))
    left = [axis for axis in range(rank) if axis not in axes]
    found: dict[int, Status | None] = {}
    for axis in {axis for state in operands for axis, _ in state.axes}:
        status = combined(name, eqn.params, operands, axis)
        if axis in left:
            found[left.index(axis)] = status
        elif not isinstance(status, Filled):
            return [Unknown(name)] * len(eqn.outvars)
    return [made(found, operands)] * len(eqn.outvars)


def along(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Work along one axis, or some: cumulative sums, sorts, `top_k`, Fourier transforms.

    Along rows, padded ones among them come anywhere, so nothing is known of the result.
    """
    name, params = eqn.primitive.name, eqn.params
    rank = len(scope.shape(eqn.invars[0]))
    if name == "fft":
        worked = [*range(rank - len(params["fft_lengths"]), rank)]
    else:
        axis = params.get("axis", params.get("dimension", params.get("reduction_dimension")))
        worked = [rank - 1 if axis is None else axis % rank]
    bad, operands = opened(name, states)
    if bad is not None:
        return [bad] * len(eqn.outvars)
    if any(isinstance(state.at(axis), Mark) for state in operands for axis in worked):
        return [Unknown(name)] * len(eqn.outvars)
    blind = {axis for axis in range(rank) if all(state.is_blind(axis) for state in operands)}
    axes = {axis for state in operands for axis, _ in state.axes}.difference(worked)
    statuses: dict[int, Status | None] = {
        axis: combined(name, params, operands, axis) for axis in axes
    }
    if len(operands) == 1:
        kept = kept_values(operands[0], name)
        statuses = {axis: kept.at(axis) for axis in axes}
    result = made(statuses, operands, blind=blind.difference(worked))
    return [result] * len(eqn.outvars)


def window(_scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Windows over other axes leave rows alone: pooling, and its gradient."""
    name, params = eqn.primitive.name, eqn.params
    bad, operands = opened(name, states)
    if bad is not None:
        return [bad] * len(eqn.outvars)
    statuses: dict[int, Status | None] = {}
    for axis in {axis for state in operands for axis, _ in state.axes}:
        source = operands[0].at(axis)
        is_linear = name in {"reduce_window_sum", "select_and_scatter_add"}
        zero = is_linear and isinstance(source, Filled) and same(source.value, 0)
        status = Filled(0) if zero else combined(name, params, operands, axis)
        if _is_single(params, axis):
            statuses[axis] = status
        elif not isinstance(status, Filled):
            return [Unknown(name)] * len(eqn.outvars)
    return [made(statuses, operands)] * len(eqn.outvars)


def _is_single(params: Any, axis: int) -> bool:
    """Whether each window holds one entry along the axis, in its place."""
    return (
        params["window_dimensions"][axis] == 1
        and params["window_strides"][axis] == 1
        and tuple(params["padding"][axis]) == (0, 0)
        and all(params.get(key, {axis: 1})[axis] == 1 for key in ("base_dilation",))
    )


REDUCTION_RULES: dict[str, Rule] = {
    **dict.fromkeys([*_WORDS, *_HARMLESS, "reduce"], reduce),
    **dict.fromkeys(
        [
            "approx_top_k",
            "cumlogsumexp",
            "cummax",
            "cummin",
            "cumprod",
            "cumsum",
            "fft",
            "sort",
            "top_k",
        ],
        along,
    ),
    **dict.fromkeys(
        [
            "reduce_window",
            "reduce_window_max",
            "reduce_window_min",
            "reduce_window_sum",
            "select_and_gather_add",
            "select_and_scatter_add",
        ],
        window,
    ),
}
