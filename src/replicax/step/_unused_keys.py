"""Random keys of model objects that a replica function does not use.

Each replica sees a key of its own, which has to be computed when the object is bound, before
anybody knows whether the function uses it. Without this, each step would take the keys of all
objects that are alive.
"""

from __future__ import annotations

from typing import Any

from replicax.step import _compat

_FOLD = "random_fold_in"


def without_unused_keys(closed_jaxpr: Any) -> Any:
    """The program without the keys that it makes and does not use. Context: any.

    Args:
        closed_jaxpr: What one replica runs, from `jax.make_jaxpr`.
    """
    jaxpr, _ = _compat.opened(closed_jaxpr)
    live = set(_variables(jaxpr.outvars))
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.primitive.name == _FOLD and live.isdisjoint(eqn.outvars):
            continue
        kept.append(eqn)
        live.update(_variables(eqn.invars))
    if len(kept) == len(jaxpr.eqns):
        return closed_jaxpr
    return _compat.with_equations(closed_jaxpr, kept[::-1])


def used_constants(closed_jaxpr: Any) -> list[bool]:
    """Of each constant of a program, whether something reads it. Context: any."""
    jaxpr, _ = _compat.opened(closed_jaxpr)
    used = set(_variables(jaxpr.outvars))
    for eqn in jaxpr.eqns:
        used.update(_variables(eqn.invars))
    return [variable in used for variable in jaxpr.constvars]


def _variables(atoms: Any) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, _compat.literal_type())]
