"""Equations with jaxprs inside: calls, loops and branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicax.step import _compat
from replicax.step._proof._calls import JAXPR_PARAMETERS

from ._elementwise import elementwise
from ._states import Dirty, Known, State, Unknown, collapsed, joined, made, moved

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

    from ._scope import Rule, Scope

_ROUNDS = 8
"""A state of one value changes at most so often: rows, filled, filled with anything, unsure."""


def call(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """The operands are the inputs of the jaxpr, one for one."""
    names = JAXPR_PARAMETERS[eqn.primitive.name]
    jaxpr = next(eqn.params[name] for name in names if name in eqn.params)
    return scope.shared.read(jaxpr, states)


def high_primitive(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """A primitive of jax's high level is expanded into what it stands for."""
    name = type(eqn.params["_prim"]).__name__
    if name.startswith("CheckpointName"):
        return states
    if name in {"Frexp", "Ldexp"}:
        return elementwise(scope, eqn, states)
    return scope.shared.read(scope.shared.expanded(eqn), states)


def linear_solve(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Of its four functions, `solve` alone runs: on its own constants and the right-hand side."""
    lengths = eqn.params["const_lengths"]
    before = lengths.matvec + lengths.vecmat
    right_hand_side = before + lengths.solve + lengths.transpose_solve
    inputs = [*states[before : before + lengths.solve], *states[right_hand_side:]]
    return scope.shared.read(eqn.params["jaxprs"].solve, inputs)


def scan(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """A loop over axis 0 of some operands; what it carries runs to a fixed point.

    A loop over the rows themselves takes them apart, so nothing is known of what it makes of them.
    """
    constants, carried = _compat.scan_lengths(eqn.params)
    start = constants + carried
    scanned = [_shifted(collapsed(state), -1) for state in states[start:]]
    carry = [collapsed(state) for state in states[constants:start]]
    jaxpr = eqn.params["jaxpr"]
    for _ in range(_ROUNDS * (carried + 1)):
        found = scope.shared.read(jaxpr, [*states[:constants], *carry, *scanned])
        after = [joined(*pair) for pair in zip(carry, found[:carried], strict=True)]
        if after == carry:
            break
        carry = after
    else:
        return [Unknown("scan")] * len(eqn.outvars)
    if eqn.params["length"] == 0:
        found = [*carry, *found[carried:]]
    stacked = [_shifted(collapsed(state), 1) for state in found[carried:]]
    return [*(collapsed(state) for state in found[:carried]), *stacked]


def _shifted(state: State, by: int) -> State:
    """Without axis 0, or with a new one."""
    if not isinstance(state, Known) or state.value is not None:
        return state
    axes = {axis for axis, _ in state.axes} | state.blind
    if state.role is not None and state.role[1] is not None:
        axes.add(state.role[1])
    return moved(state, {axis: axis + by for axis in axes if axis + by >= 0}, why="scan")


def while_loop(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Runs to a fixed point; the number of rounds must not depend on padding."""
    tested, used = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    start = tested + used
    carry = [collapsed(state) for state in states[start:]]
    for _ in range(_ROUNDS * (len(carry) + 1)):
        (test,) = scope.shared.read(eqn.params["cond_jaxpr"], [*states[:tested], *carry])
        test = collapsed(test)
        if not isinstance(test, Known):
            return [_decided(test, "while")] * len(eqn.outvars)
        found = scope.shared.read(eqn.params["body_jaxpr"], [*states[tested:start], *carry])
        after = [joined(*pair) for pair in zip(carry, found, strict=True)]
        if after == carry:
            return [_chosen(test, state, "while") for state in carry]
        carry = after
    return [Unknown("while")] * len(eqn.outvars)


def cond(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """One of several branches."""
    which, *operands = states
    which = collapsed(which)
    branches = eqn.params["branches"]
    if isinstance(which, Known) and which.value is not None:
        taken = min(max(int(which.value), 0), len(branches) - 1)
        return scope.shared.read(branches[taken], operands)
    if not isinstance(which, Known):
        return [_decided(which, "cond")] * len(eqn.outvars)
    found = [scope.shared.read(branch, operands) for branch in branches]
    results = []
    for states_of_one in zip(*found, strict=True):
        state = states_of_one[0]
        for other in states_of_one[1:]:
            state = joined(state, other)
        results.append(_chosen(which, state, "cond"))
    return results


def _decided(test: State, why: str) -> State:
    """The result of what a condition decides that is not known to be clean."""
    return test if isinstance(test, Dirty) else Unknown(why)


def _chosen(test: Known, state: State, why: str) -> State:
    """A condition made of row counts may choose a value only where it is right."""
    state = collapsed(state)
    if not test.may_mask:
        return state
    if isinstance(state, Known) and state.is_clean:
        return made(dict(state.axes), [state, test], blind=state.blind)
    return Unknown(why)


CONTROL_RULES: dict[str, Rule] = {
    **dict.fromkeys(JAXPR_PARAMETERS, call),
    "call_hi_primitive": high_primitive,
    "cond": cond,
    "custom_linear_solve": linear_solve,
    "scan": scan,
    "while": while_loop,
}
