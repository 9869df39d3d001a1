"""Control flow: scan and while run to a fixed point, cond joins its branches.

Kinds only ever go from mirrored to varying, so every loop here ends: after at most one round
more than there are carried values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicax.step import _compat

from ._kinds import Kind, join
from ._scope import Reading, Rule, Scope, references

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn


def scan(scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> Sequence[Kind]:
    """What the body leaves in a carried value goes into the next round."""
    constants, carried = _compat.scan_lengths(eqn.params)
    carry = slice(constants, constants + carried)
    shared = references(eqn)
    while True:
        reading = scope.enter(eqn.params["jaxpr"], kinds)
        following = list(kinds)
        following[carry] = _joined(kinds[carry], reading.outputs[:carried])
        for i in shared:
            following[i] = join([kinds[i], reading.inputs[i]])
        if not _grew(kinds, following):
            break
        kinds = following
    for i in shared:
        scope.settle(eqn.invars[i], reading.inputs[i], may_skip=True)
    scope.emit(reading, times=eqn.params["length"], loop=True)
    return [*kinds[carry], *reading.outputs[carried:]]


def while_loop(scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> Sequence[Kind]:
    """A condition that varies lets replicas stop at different rounds: all carried values vary.

    The condition may come to vary only in a later round, so it is looked at in each.
    """
    test_constants = eqn.params["cond_nconsts"]
    start = test_constants + eqn.params["body_nconsts"]
    body_constants = slice(test_constants, start)
    control = None
    while True:
        test_kinds = kinds[:test_constants] + kinds[start:]
        test = scope.enter(eqn.params["cond_jaxpr"], test_kinds, control)
        (condition,) = test.outputs
        if condition is not None and control is None:
            control = scope.shared.control(condition, eqn)
            continue  # Read the condition again: a collective in it may not stay.
        body = scope.enter(eqn.params["body_jaxpr"], kinds[body_constants] + kinds[start:], control)
        following = list(kinds)
        following[start:] = [
            join([before, after, condition])
            for before, after in zip(kinds[start:], body.outputs, strict=True)
        ]
        _settle_loop(scope, eqn, [test, body], following)
        if not _grew(kinds, following):
            break
        kinds = following
    for reading in (test, body):
        scope.emit(reading, times=None, loop=True)
    return kinds[start:]


def cond(scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> Sequence[Kind]:
    """A condition that varies lets replicas take different branches: all results vary."""
    condition, *operands = kinds
    control = None if condition is None else scope.shared.control(condition, eqn)
    branches = [scope.enter(branch, operands, control) for branch in eqn.params["branches"]]
    for branch in branches:
        scope.emit(branch, times=None)
    for i in references(eqn):
        scope.settle(eqn.invars[i], join(branch.inputs[i - 1] for branch in branches))
    results = zip(*(branch.outputs for branch in branches), strict=True)
    return [join([condition, *found]) for found in results]


def _settle_loop(
    scope: Scope, eqn: JaxprEqn, readings: Sequence[Reading], following: list[Kind]
) -> None:
    """Takes over the writes of one round of a while loop.

    Condition and body may both be given the same reference, so its kind is read back by name.
    """
    test_constants = eqn.params["cond_nconsts"]
    test, body = readings
    for i in references(eqn):
        reading, place = (test, i) if i < test_constants else (body, i - test_constants)
        scope.settle(eqn.invars[i], reading.inputs[place], may_skip=True)
    for i in references(eqn):
        following[i] = scope.env[eqn.invars[i]]


def _joined(before: Sequence[Kind], after: Sequence[Kind]) -> list[Kind]:
    return [join(pair) for pair in zip(before, after, strict=True)]


def _grew(before: Sequence[Kind], after: Sequence[Kind]) -> bool:
    return any(old is None and new is not None for old, new in zip(before, after, strict=True))


CONTROL_RULES: dict[str, Rule] = {"cond": cond, "scan": scan, "while": while_loop}
