"""Equations that run a jaxpr once: jit, remat, custom derivatives, shard_map and the like."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replicax.step import _compat

from ._kinds import Kind, Source, join
from ._primitives import POINTWISE, registered_rule
from ._refusals import refuse_construct, refuse_primitive
from ._rules import pointwise, registered
from ._scope import Reading, Rule, Scope, references

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

# The parameter that holds the jaxpr; two where releases differ.
JAXPR_PARAMETERS: dict[str, tuple[str, ...]] = {
    "call": ("call_jaxpr",),
    "checkpoint": ("jaxpr",),
    "closed_call": ("call_jaxpr",),
    "composite": ("call_jaxpr", "jaxpr"),
    "compute_on": ("jaxpr",),
    "core_call": ("call_jaxpr",),
    "core_closed_call": ("call_jaxpr",),
    "custom_jvp_call": ("call_jaxpr",),
    "custom_partitioning": ("call",),
    "custom_vjp_call": ("call_jaxpr",),
    "custom_vjp_call_jaxpr": ("fun_jaxpr", "call_jaxpr"),
    "custom_vmap_call": ("call",),
    "eval_jaxpr": ("call_jaxpr", "jaxpr"),
    "fused_call": ("jaxpr",),
    "jit": ("jaxpr",),
    "linear_call": ("callee",),
    "pjit": ("jaxpr",),
    "remat": ("jaxpr",),
    "remat2": ("jaxpr",),
    "remat_opt": ("fwd_jaxpr",),
    "xla_metadata_call": ("jaxpr",),
}


def call(scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> Sequence[Kind]:
    """The operands of the equation are the inputs of its jaxpr, one for one."""
    names = JAXPR_PARAMETERS[eqn.primitive.name]
    jaxpr = next(eqn.params[name] for name in names if name in eqn.params)
    return _enter(scope, eqn, jaxpr, kinds).outputs


def linear_solve(scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> Sequence[Kind]:
    """Of its four functions, `solve` alone runs: on its own constants and the right-hand side."""
    lengths = eqn.params["const_lengths"]
    before_solve = lengths.matvec + lengths.vecmat
    right_hand_side = before_solve + lengths.solve + lengths.transpose_solve
    inputs = kinds[before_solve : before_solve + lengths.solve] + kinds[right_hand_side:]
    if references(eqn):
        refuse_construct(eqn.primitive.name, _compat.equation_site(eqn), _REFERENCES)
    reading = scope.enter(eqn.params["jaxprs"].solve, inputs)
    scope.emit(reading)
    return reading.outputs


def run_state(scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> Sequence[Kind]:
    """The operands become references, and the results are what is left in them."""
    if not all(eqn.params["is_initialized"]) or references(eqn):
        why = "it uses references that are not initialised, or that come from outside."
        refuse_construct(eqn.primitive.name, _compat.equation_site(eqn), why)
    reading = scope.enter(eqn.params["jaxpr"], kinds)
    scope.emit(reading)
    return reading.inputs


def shard_map(scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> Sequence[Kind]:
    """A nested shard_map over other axes changes nothing along ours.

    One that makes our own axis manual splits and joins values: what its specs split over our
    axis varies inside. Constants that the function closed over are operands with specs too, so
    specs are read, never positions.
    """
    axis, params = scope.shared.axis_name, eqn.params
    into, out = _mentions(params, "in", axis), _mentions(params, "out", axis)
    if axis not in _manual_axes(params):
        return _enter(scope, eqn, params["jaxpr"], kinds).outputs
    split = Source(f"an input that shard_map splits over {axis!r}", _compat.equation_site(eqn))
    inner = [split if own else kind for own, kind in zip(into, kinds, strict=True)]
    reading = _enter(scope, eqn, params["jaxpr"], inner)
    outside = join(kinds)  # Only where this shard_map itself stands in per-replica code.
    joined = zip(out, reading.outputs, strict=True)
    return [outside if own else kind for own, kind in joined]


def high_primitive(scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> Sequence[Kind]:
    """A primitive of jax's high level: known by class, or expanded into what it stands for."""
    primitive = eqn.params["_prim"]
    name = type(primitive).__name__
    if name in POINTWISE:
        return pointwise(scope, eqn, kinds)
    if registered_rule(name) is not None:
        return registered(scope, eqn, kinds, name=name)
    if name == "CustomRoot":  # The operands of `solve` come first.
        jaxpr = primitive.solve_jaxpr
        return _enter(scope, eqn, jaxpr, kinds[: len(_compat.opened(jaxpr)[0].invars)]).outputs
    try:
        jaxpr = _compat.expand_high_primitive(eqn)
    except Exception as error:  # noqa: BLE001 - jax code of any kind runs here.
        refuse_primitive(name, _compat.equation_site(eqn), f"it does not expand ({error!r})")
    return _enter(scope, eqn, jaxpr, kinds).outputs


def _enter(scope: Scope, eqn: JaxprEqn, jaxpr: Any, kinds: Sequence[Kind]) -> Reading:
    """Reads a jaxpr that runs once, and takes over its collectives and its writes."""
    reading = scope.enter(jaxpr, kinds)
    scope.emit(_placed(reading, eqn))
    for i in references(eqn):
        scope.settle(eqn.invars[i], reading.inputs[i])
    return reading


def _placed(reading: Reading, eqn: JaxprEqn) -> Reading:
    """Collectives without a line get that of the call: jax traces some functions apart."""
    if all(each.call_site is not None for each in reading.collectives):
        return reading
    site = _compat.equation_site(eqn)
    collectives = (
        each if each.call_site is not None else dataclasses.replace(each, call_site=site)
        for each in reading.collectives
    )
    return dataclasses.replace(reading, collectives=tuple(collectives))


def _mentions(params: Any, side: str, axis: str) -> list[bool]:
    """For each operand or result, whether its spec names the axis."""
    if f"{side}_names" in params:  # An older form: {dimension: axes}.
        return [axis in sum(names.values(), ()) for names in params[f"{side}_names"]]
    found = []
    for spec in params[f"{side}_specs"]:
        parts = [*spec, getattr(spec, "unreduced", ())]
        found.append(any(p == axis or (p is not None and axis in tuple(p)) for p in parts))
    return found


def _manual_axes(params: Any) -> Sequence[str]:
    for name in ("newly_manual_axes", "manual_axes"):
        if name in params:
            return tuple(params[name])
    return [name for name in params["mesh"].axis_names if name not in params.get("auto", ())]


_REFERENCES = "a mutable reference stands among its operands."

CALL_RULES: dict[str, Rule] = {
    **dict.fromkeys(JAXPR_PARAMETERS, call),
    "call_hi_primitive": high_primitive,
    "custom_linear_solve": linear_solve,
    "run_state": run_state,
    "shard_map": shard_map,
}
