"""Contractions: `dot_general` and convolutions.

This is how gradients meet rows: the gradient of a weight contracts the rows of an activation with
those of a cotangent. Where the cotangent is that of a masked sum it is zero at padded rows, so the
padding in the activation does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._elementwise import combined, opened
from ._reductions import dirt
from ._states import (
    Filled,
    Known,
    Mark,
    State,
    Status,
    Unknown,
    constant,
    filling,
    made,
    same,
)

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

    from ._scope import Rule, Scope


def dot_general(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Axes are contracted, multiplied one by one (batch), or left."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    ranks = [len(scope.shape(atom)) for atom in eqn.invars]
    pairs = list(zip(left_batch, right_batch, strict=True))
    places: list[tuple[int | None, int | None]] = list(pairs)
    places += [(axis, None) for axis in range(ranks[0]) if axis not in {*left, *left_batch}]
    places += [(None, axis) for axis in range(ranks[1]) if axis not in {*right, *right_batch}]
    return [_product(scope, eqn, states, list(zip(left, right, strict=True)), places)]


def convolution(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Batch and output features are left, input features are contracted, positions are neither."""
    params = eqn.params
    numbers = params["dimension_numbers"]
    image, kernel, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    places: list[tuple[int | None, int | None]] = [(None, None)] * len(out)
    contracted = []
    if params["batch_group_count"] == 1:
        places[out[0]] = (image[0], None)
    if params["batch_group_count"] == 1 and params["feature_group_count"] == 1:
        places[out[1]] = (None, kernel[0])
    if params["feature_group_count"] == 1:
        contracted.append((image[1], kernel[1]))
    return [_product(scope, eqn, states, contracted, places)]


def _product(
    scope: Scope,
    eqn: JaxprEqn,
    states: Sequence[State],
    contracted: Sequence[tuple[int, int]],
    places: Sequence[tuple[int | None, int | None]],
) -> State:
    """A product that sums over pairs of axes; `places` says where the axes of the result are from.

    Axes that are in neither list are worked over in some other way.
    """
    name = eqn.primitive.name
    bad, operands = opened(name, states)
    if any(same(state.value, 0) for state in operands):
        return constant(0)
    if bad is not None:
        return bad
    seen = [{pair[i] for pair in [*contracted, *places]} for i in range(2)]
    for operand, axes in zip(operands, seen, strict=True):
        if any(axis not in axes and isinstance(s, Mark) for axis, s in operand.axes):
            return Unknown(name)
    found = [_contraction(operands, pair) for pair in contracted]
    if Mark.UNSURE in found:
        return Unknown(name)
    if Mark.ROWS in found:
        axis = contracted[found.index(Mark.ROWS)][0]
        what = "product that sums over the rows"
        return dirt(eqn, what, rows=scope.shape(eqn.invars[0])[axis])
    statuses: dict[int, Status | None] = {}
    blind = []
    for place, (left, right) in enumerate(places):
        statuses[place] = _remaining(operands, left, right)
        if _is_blind(operands[0], left) and _is_blind(operands[1], right):
            blind.append(place)
    if name == "conv_general_dilated":
        blind = []
    return made(statuses, operands, blind=blind)


def _contraction(operands: Sequence[Known], pair: tuple[int, int]) -> Status | None:
    """ROWS if the sum over a pair of axes counts padding, UNSURE if it may, else None."""
    sides = list(zip(operands, pair, strict=True))
    fillings = [filling(operand, axis) for operand, axis in sides]
    if None not in fillings or any(f is not None and same(f.value, 0) for f in fillings):
        return None
    for operand, axis in sides:
        status = operand.at(axis)
        blind = status is None and operand.is_blind(axis) and not operand.may_mask
        if status is not Mark.ROWS and not blind:
            return Mark.UNSURE
    return Mark.ROWS


def _remaining(operands: Sequence[Known], left: int | None, right: int | None) -> Status | None:
    if left is not None and right is not None:  # A batch axis: multiplied one by one.
        if operands[0].at(left) is None and operands[1].at(right) is None:
            return None
        sides = [_only(operands[0], left), _only(operands[1], right)]
        return combined("mul", {}, sides, 0)
    for operand, axis in zip(operands, (left, right), strict=True):
        status = None if axis is None else operand.at(axis)
        if isinstance(status, Filled):
            return Filled(0) if same(status.value, 0) else Filled()
        if status is not None:
            return status
    return None


def _only(operand: Known, axis: int) -> Known:
    """The operand along one axis, as axis 0."""
    status = operand.at(axis)
    return Known(
        axes=() if status is None else ((0, status),),
        value=operand.value,
        blind=frozenset({0} if operand.is_blind(axis) else ()),
        counted=operand.counted,
        data=operand.data,
    )


def _is_blind(operand: Known, axis: int | None) -> bool:
    return axis is None or operand.is_blind(axis)


PRODUCT_RULES: dict[str, Rule] = {
    "conv_general_dilated": convolution,
    "dot_general": dot_general,
}
