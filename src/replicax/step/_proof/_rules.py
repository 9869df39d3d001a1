"""Rules of primitives without a jaxpr of their own: collectives, callbacks, references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replicax.step import _compat

from ._kinds import Kind, ProvedCollective, Source, join
from ._primitives import EQUALISING, VARYING, registered_rule
from ._refusals import refuse_collective, refuse_construct, refuse_varying
from ._scope import Rule, Scope, references

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn


def pointwise(_scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> list[Kind]:
    """Every result depends on every operand."""
    return [join(kinds)] * len(eqn.outvars)


def one_by_one(_scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> list[Kind]:
    """Result i is operand i; references are operands only."""
    kept = set(range(len(kinds))).difference(references(eqn))
    return [kinds[i] for i in sorted(kept)]


def varying(_scope: Scope, eqn: JaxprEqn, _kinds: list[Kind]) -> list[Kind]:
    """The results may differ whatever goes in."""
    site = _compat.equation_site(eqn)
    return [Source(VARYING[eqn.primitive.name], site)] * len(eqn.outvars)


def foreign_call(scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> list[Kind]:
    """A function of its operands, unless it declares a side effect."""
    if not eqn.params.get("has_side_effect", True):
        return pointwise(scope, eqn, kinds)
    name = eqn.params.get("target_name", eqn.primitive.name)
    source = Source(f"the foreign call `{name}` with a side effect", _compat.equation_site(eqn))
    return [source] * len(eqn.outvars)


def axis_index(scope: Scope, eqn: JaxprEqn, _kinds: list[Kind]) -> list[Kind]:
    """The replica id varies; the index along another axis does not vary along ours."""
    if scope.shared.axis_name not in _axes(eqn):
        return [None]
    return [Source("the replica id", _compat.equation_site(eqn))]


def collective(scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> list[Kind]:
    """A collective makes equal, or spreads, along the axes that it names.

    One over other axes alone is a function of operands that are equal along ours. One over
    several axes, ours among them, equalises along ours too. Groups of replicas have a result
    each, so nothing is equal between them.
    """
    name = eqn.primitive.name
    if scope.shared.axis_name not in _axes(eqn):
        return pointwise(scope, eqn, kinds)
    site = _note_collective(scope, eqn)
    if name not in EQUALISING:
        description = f"the own part that `{name}` gives each replica"
    elif eqn.params.get("axis_index_groups") is not None:
        description = f"the groups of replicas of `{name}`"
    elif name == "pbroadcast_dynamic" and join(kinds[1:]) is not None:
        return [join(kinds[1:])] * len(eqn.outvars)  # The replicas disagree on the source.
    else:
        return [None] * len(eqn.outvars)
    return [Source(description, site)] * len(eqn.outvars)


def registered(scope: Scope, eqn: JaxprEqn, kinds: list[Kind], *, name: str) -> list[Kind]:
    """A primitive that the user described with `register_primitive`."""
    if references(eqn):
        why = "it is registered by name, and a rule says nothing of the references it may write."
        refuse_construct(name, _compat.equation_site(eqn), why)
    if scope.shared.axis_name in _axes(eqn):
        _note_collective(scope, eqn)
    rule = registered_rule(name)
    if rule == "varying":
        source = Source(f"`{name}`, registered as varying", _compat.equation_site(eqn))
        return [source] * len(eqn.outvars)
    return pointwise(scope, eqn, kinds if rule == "pointwise" else [])


def make_reference(_scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> list[Kind]:
    """A new reference is what it starts with."""
    if eqn.primitive.name == "empty_ref":
        return [Source("uninitialised memory", _compat.equation_site(eqn))]
    return [join(kinds)]


def read_reference(_scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> list[Kind]:
    """What is read varies with the reference and with the place."""
    return [join(kinds)] * len(eqn.outvars)


def write_reference(scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> list[Kind]:
    """`swap` gives the old value and writes; `addupdate` adds. The rest of operands is the place.

    A swap of the whole reference with a mirrored value makes it mirrored again.
    """
    before, value, *place = kinds
    whole = eqn.primitive.name == "swap" and len(eqn.invars) == 2  # noqa: PLR2004 - no place.
    scope.write(eqn.invars[0], join([value, *place]), whole=whole)
    return [join([before, *place])] * len(eqn.outvars)


REFERENCE_RULES: dict[str, Rule] = {
    "addupdate": write_reference,
    "empty_ref": make_reference,
    "free_ref": read_reference,
    "freeze": read_reference,
    "get": read_reference,
    "new_ref": make_reference,
    "ref": make_reference,
    "swap": write_reference,
}


def mirrored_only(_scope: Scope, eqn: JaxprEqn, kinds: list[Kind]) -> list[Kind]:
    """An identity that a varying value may not go through."""
    source = join(kinds)
    if source is not None:
        call, name = eqn.params["call"], eqn.params["name"]
        refuse_varying(call, name, _compat.equation_site(eqn), source)
    return [None] * len(eqn.outvars)


def _note_collective(scope: Scope, eqn: JaxprEqn) -> Any:
    """Records a collective over our axis; refuses it under a condition that varies."""
    name, site = eqn.primitive.name, _compat.equation_site(eqn)
    if scope.control is not None:
        refuse_collective(name, site, scope.control)
    avals: list[Any] = [a.aval for a in eqn.invars if hasattr(a.aval, "shape")]
    size = sum(math.prod(a.shape) * getattr(a.dtype, "itemsize", 0) for a in avals)
    scope.collectives.append(
        ProvedCollective(
            primitive=name,
            call_site=site,
            dtypes=tuple(str(a.dtype) for a in avals),
            shapes=tuple(tuple(a.shape) for a in avals),
            bytes=size,
        )
    )
    return site


def _axes(eqn: JaxprEqn) -> Sequence[Any]:
    """Names (and, under vmap, positions) of the axes of a collective."""
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    if isinstance(axes, (tuple, list)):
        return axes
    if isinstance(axes, (set, frozenset)):
        return tuple(axes)
    return (axes,)
