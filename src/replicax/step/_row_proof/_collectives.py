"""Collectives over the replicas, and random numbers and linear algebra row by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicax.step import _compat

from ._shapes import default
from ._states import (
    COUNTED,
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

_SUMS = frozenset({"psum", "psum2", "psum_invariant", "reduce_scatter", "unreduced_psum"})


def all_reduce(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Row i of one replica is combined with row i of the others, unless rows were gathered."""
    if not _is_over_replicas(scope, eqn):
        return default(scope, eqn, states) if len(states) == 1 else _each(eqn, states)
    return [
        _combined_parts(scope, eqn, scope.shape(atom), state)
        for atom, state in zip(eqn.invars, states, strict=True)
    ]


def _each(eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    clean = [isinstance(s, Known) and s.is_clean for s in states]
    pairs = zip(states, clean, strict=True)
    return [s if ok else Unknown(eqn.primitive.name) for s, ok in pairs]


def _combined_parts(scope: Scope, eqn: JaxprEqn, shape: Sequence[int], state: State) -> State:
    """Leaves that travel together are joined before, and cut apart after."""
    if not isinstance(state, Parts):
        return _combined(scope, eqn, shape, state)
    before, after = shape[: state.dimension], shape[state.dimension + 1 :]
    parts = [
        (size, _combined(scope, eqn, (*before, size, *after), collapsed(part)))
        for size, part in state.parts
    ]
    return Parts(state.dimension, tuple(parts))


def _combined(scope: Scope, eqn: JaxprEqn, shape: Sequence[int], state: State) -> State:
    if isinstance(state, Dirty):
        return dataclasses.replace(state, local=False)
    if not isinstance(state, Known):
        return state
    name = eqn.primitive.name
    if same(state.value, 0):
        return constant(0)
    axes: dict[int, Status | None] = {}
    for axis, status in state.axes:
        if shape[axis] == scope.shared.global_rows:  # The same rows on all replicas.
            zero = isinstance(status, Filled) and same(status.value, 0)
            axes[axis] = status if zero or isinstance(status, Mark) else Filled()
        elif status is Mark.ROWS and name in _SUMS:
            return Dirty(
                f"{name} of rows over the replicas", _compat.equation_site(eqn), local=False
            )
        elif isinstance(status, Mark):
            return Unknown(name)
    every = range(len(shape))
    result = made(axes, [state], blind=every if state.value is not None else state.blind)
    # A single number is now the same on all replicas, and cannot mask some of them.
    return result if shape else dataclasses.replace(result, counted=False)


def all_gather(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Gathered along rows they are global rows, with padding among them."""
    params = eqn.params
    dimension = params.get("all_gather_dimension")
    if not _is_over_replicas(scope, eqn) or not params.get("tiled") or dimension is None:
        return default(scope, eqn, states)
    name = eqn.primitive.name
    is_local = scope.shape(eqn.invars[0])[dimension] == scope.shared.capacity

    def gathered(state: State) -> State:
        if not isinstance(state, Known) or state.value is not None:
            return state
        for axis, status in state.axes:
            if isinstance(status, Mark) and not (axis == dimension and is_local):
                return Unknown(name)
        is_mask = is_local and state.role == ("mask", dimension)
        return made(
            {dimension: state.at(dimension) if is_local else None},
            [state],
            blind=[axis for axis in state.blind if axis != dimension],
            role=state.role if is_mask else None,
        )

    return [_local(gathered(collapsed(state))) for state in states]


def reduce_scatter(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Of gathered rows each replica gets its own back: this is the gradient of `all_gather`."""
    dimension, (atom,) = eqn.params["scatter_dimension"], eqn.invars
    if not _is_over_replicas(scope, eqn) or not eqn.params.get("tiled"):
        return default(scope, eqn, states)
    state = _combined(scope, eqn, scope.shape(atom), collapsed(states[0]))
    if not isinstance(state, Known) or state.value is not None:
        return [state]
    if any(axis != dimension and isinstance(status, Mark) for axis, status in state.axes):
        return [Unknown(eqn.primitive.name)]
    blind = [axis for axis in state.blind if axis != dimension]
    return [made({dimension: state.at(dimension)}, [state], blind=blind)]


def _local(state: State) -> State:
    return dataclasses.replace(state, local=False) if isinstance(state, Dirty) else state


def _is_over_replicas(scope: Scope, eqn: JaxprEqn) -> bool:
    """Whether the collective is over the axis of the replicas alone, and over all of them."""
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    return tuple(axes) == (scope.shared.axis_name,)


def axis_index(_scope: Scope, _eqn: JaxprEqn, _states: Sequence[State]) -> Sequence[State]:
    """The replica id tells replicas apart, so it may say which rows are real."""
    return [COUNTED]


def by_leading_axes(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """One result for each place of the leading axes: keys, and matrices."""
    name = eqn.primitive.name
    trailing = _TRAILING[name]
    states = [collapsed(state) for state in states]
    operands = [state for state in states if isinstance(state, Known)]
    is_random = name.startswith("random")
    if len(operands) == len(states):
        leading = max(len(scope.shape(atom)) for atom in eqn.invars) - trailing
        axes: dict[int, Status | None] = {}
        for axis in {axis for state in operands for axis, _ in state.axes}:
            statuses = [state.at(axis) for state in operands]
            if axis >= leading and any(isinstance(status, Mark) for status in statuses):
                return [Unknown(name)] * len(eqn.outvars)
            axes[axis] = _row_by_row(statuses) if axis < leading else None
            right_side = filling(operands[-1], axis)
            is_linear = name == "triangular_solve" and axis < leading
            if is_linear and right_side is not None and same(right_side.value, 0):
                axes[axis] = Filled(0)  # Its result is linear in the right-hand side.
        results = []
        for variable in eqn.outvars:
            # No mask comes out of a generator of random numbers.
            blind = range(len(scope.shape(variable))) if is_random else ()
            result = made(axes, operands, blind=blind)
            results.append(dataclasses.replace(result, counted=result.counted and not is_random))
        return results
    return default(scope, eqn, states)


def _row_by_row(statuses: Sequence[Status | None]) -> Status:
    if Mark.UNSURE in statuses:
        return Mark.UNSURE
    if Mark.ROWS in statuses:
        return Mark.UNSURE if any(isinstance(s, Filled) for s in statuses) else Mark.ROWS
    return Filled()


_TRAILING = {
    **dict.fromkeys(
        [
            "random_bits",
            "random_clone",
            "random_fold_in",
            "random_seed",
            "random_split",
            "random_unwrap",
        ],
        0,
    ),
    "lu_pivots_to_permutation": 1,
    "random_wrap": 1,
    **dict.fromkeys(
        [
            "cholesky",
            "eig",
            "eigh",
            "geqrf",
            "householder_product",
            "lu",
            "qr",
            "schur",
            "svd",
            "triangular_solve",
        ],
        2,
    ),
}

COLLECTIVE_RULES: dict[str, Rule] = {
    **dict.fromkeys(["all_gather", "all_gather_invariant"], all_gather),
    **dict.fromkeys(
        [
            "pmax",
            "pmin",
            "psum",
            "psum2",
            "psum_invariant",
            "unreduced_psum",
            "unreduced_pmax",
            "unreduced_pmin",
        ],
        all_reduce,
    ),
    **dict.fromkeys(_TRAILING, by_leading_axes),
    "axis_index": axis_index,
    "reduce_scatter": reduce_scatter,
}
