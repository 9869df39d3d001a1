"""The entrance of the proof pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replicax.errors import InvalidArgumentError, describe
from replicax.step import _compat

from ._calls import CALL_RULES
from ._control import CONTROL_RULES
from ._kinds import Kind, Proof, Source
from ._primitives import (
    EQUALISING,
    MIRRORED_ONLY,
    ONE_BY_ONE,
    REFUSED,
    SIDE_EFFECT_PARAMETER,
    SPREADING,
    VARYING,
    registered_rule,
    reserve,
)
from ._refusals import refuse_leaked_tracer, refuse_primitive, refuse_reference_write
from ._rules import (
    REFERENCE_RULES,
    axis_index,
    collective,
    foreign_call,
    mirrored_only,
    one_by_one,
    registered,
    varying,
)
from ._scope import Pass, Rule, Scope

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

_RULES: dict[str, Rule] = {
    **dict.fromkeys(EQUALISING | SPREADING, collective),
    **dict.fromkeys(ONE_BY_ONE, one_by_one),
    **dict.fromkeys(VARYING, varying),
    **dict.fromkeys(SIDE_EFFECT_PARAMETER, foreign_call),
    **REFERENCE_RULES,
    **CALL_RULES,
    **CONTROL_RULES,
    "axis_index": axis_index,
    MIRRORED_ONLY: mirrored_only,
}
reserve(set(_RULES))


def prove(
    closed_jaxpr: Any,
    inputs: Sequence[Source | None],
    *,
    axis_name: str = "replica",
    constants: Sequence[Source | None] | None = None,
) -> Proof:
    """Proves which outputs of a replica function are equal on all replicas. Context: any.

    Reads the jaxpr once; nothing is compiled or run. A value is *mirrored* when it is a
    deterministic function of mirrored values, or the result of a collective over the axis.
    Call it where the jaxpr was made: a constant that is a tracer of a trace that still runs is
    a value from outside the replica function, any other tracer has leaked.

    Args:
        closed_jaxpr: What one replica runs, from
            `jax.make_jaxpr(fn, axis_env=[(axis_name, n)])`.
        inputs: For each input None (mirrored), or why it varies.
        axis_name: The mesh axis of the replicas.
        constants: The same for each constant of the jaxpr; None takes all of them, which come
            from outside the replica function, as mirrored.

    Returns:
        The proof: a kind for each output, and the collectives in program order.

    Raises:
        VaryingControlFlowError: A collective over the axis stands in a branch or a loop whose
            condition varies between replicas.
        VaryingWriteError: A mirrored reference among the inputs is written with a varying value.
        UnprovenError: The jaxpr holds a primitive that the pass does not know, or a leaked
            tracer.
        InvalidArgumentError: As many kinds as inputs, or as constants, were not given.

    Examples:
        >>> import jax
        >>> def step(w, x):
        ...     gradient = (w * x).sum()
        ...     return w - gradient, w - jax.lax.pmean(gradient, "replica")
        >>> jaxpr = jax.make_jaxpr(step, axis_env=[("replica", 2)])(1.0, jax.numpy.ones(3))
        >>> wrong, right = prove(jaxpr, [None, Source("argument `x`", None)]).outputs
        >>> print(wrong, right)
        argument `x` None
    """
    jaxpr, values = _compat.opened(closed_jaxpr)
    constant_kinds = [None] * len(values) if constants is None else list(constants)
    _check_number("inputs", inputs, jaxpr.invars)
    _check_number("constants", constant_kinds, values)
    for variable, value in zip(jaxpr.constvars, values, strict=True):
        if _compat.is_dead_tracer(value):
            eqn = next((e for e in jaxpr.eqns if any(v is variable for v in e.invars)), None)
            user = "a nested function" if eqn is None else f"`{eqn.primitive.name}`"
            refuse_leaked_tracer(user, eqn and _compat.equation_site(eqn))
    scope = Scope(Pass(axis_name, _find_rule), None)
    scope.define(jaxpr.constvars, constant_kinds)
    scope.define(jaxpr.invars, inputs)
    scope.run(jaxpr)
    _check_references(scope, [*jaxpr.constvars, *jaxpr.invars], [*constant_kinds, *inputs])
    reading = scope.reading(jaxpr)
    return Proof(reading.outputs, reading.collectives)


def _find_rule(eqn: JaxprEqn) -> Rule:
    name = eqn.primitive.name
    rule = _RULES.get(name)
    if rule is not None:
        return rule
    if registered_rule(name) is not None:
        return functools.partial(registered, name=name)
    return refuse_primitive(name, _compat.equation_site(eqn), REFUSED.get(name))


def _check_number(what: str, kinds: Sequence[Kind], variables: Sequence[Any]) -> None:
    if len(kinds) != len(variables):
        message = describe(
            f"prove got kinds for {len(kinds)} {what}, but the jaxpr has {len(variables)}.",
            fix=f"pass one Source or None for each of the {what}, in the order of the jaxpr.",
        )
        raise InvalidArgumentError(message)


def _check_references(scope: Scope, variables: Sequence[Any], before: Sequence[Kind]) -> None:
    """References that came in mirrored must still be mirrored."""
    for number, (variable, kind) in enumerate(zip(variables, before, strict=True)):
        after = scope.env[variable]
        if kind is None and after is not None:
            refuse_reference_write(number, after)
