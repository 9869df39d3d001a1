"""Padded row counts that a step uses as numbers, such as ``len(x)``.

In a compiled step the length of a padded batch is the padded one, and Python computes with it
unseen. But a second trace, with one row more, has another number in that place.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from replicax import errors
from replicax.step._compat import equation_site, literal_type, nested_jaxprs, opened

# Numbers in what leads to their indices are about places, not about how many rows there are.
_INDEXING = ("gather", "scatter", "dynamic_slice", "dynamic_update_slice")


def check_row_count(label: str, program: Any, wider: Any) -> None:
    """Refuse a program in which another number of rows changes a constant.

    Args:
        label: How messages call the batch.
        program: The jaxpr of what one replica runs.
        wider: The same for one row more.

    Raises:
        UnusedMaskError: Naming the line.
    """
    found = _difference(program, wider)
    if found is None:
        return
    number, site = found
    raise errors.UnusedMaskError(
        errors.describe(
            f"{label} is a padded remainder, but its number of rows was used as a number"
            + (f" at {site}." if site is not None else "."),
            why=f"`len(x)` or `x.shape[0]` is {number} on every replica here, padding included.",
            fix="Count real rows: `ctx.global_sum(jnp.ones(len(x)))` over all replicas, "
            "`ctx.local_sum(...)` on this one; take means with `ctx.global_mean(per_row)`; or let "
            "the dataset drop the remainder: `rx.InputOptions(remainder='drop')`.",
        )
    )


def _difference(one: Any, other: Any) -> tuple[Any, errors.CallSite | None] | None:
    """The first constant that differs, and the line of its equation."""
    (jaxpr, consts), (jaxpr2, consts2) = opened(one), opened(other)
    if [e.primitive for e in jaxpr.eqns] != [e.primitive for e in jaxpr2.eqns]:
        return None  # Another program: nothing can be compared.
    for a, b in zip(consts, consts2, strict=False):
        if _is_other_number(a, b):
            return a, None
    for a, b in zip(jaxpr.outvars, jaxpr2.outvars, strict=False):
        if _is_other_number(_constant(a), _constant(b)):
            return _constant(a), None
    indices = _led_to_indices(jaxpr)
    for eqn, eqn2 in zip(jaxpr.eqns, jaxpr2.eqns, strict=True):
        if not any(id(variable) in indices for variable in eqn.outvars):
            for a, b in zip(eqn.invars, eqn2.invars, strict=False):
                if _is_other_number(_constant(a), _constant(b)):
                    return _constant(a), equation_site(eqn)
        for inner, inner2 in zip(nested_jaxprs(eqn), nested_jaxprs(eqn2), strict=False):
            found = _difference(inner, inner2)
            if found is not None:
                return found[0], found[1] or equation_site(eqn)
    return None


def _constant(atom: Any) -> Any:
    value: Any = getattr(atom, "val", None)
    return value if isinstance(atom, literal_type()) else None


def _is_other_number(a: Any, b: Any) -> bool:
    """Whether both are numbers, and not the same."""
    if a is None or b is None or np.shape(a) != () or np.shape(b) != ():
        return False
    if isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer):
        return False
    if not (np.issubdtype(np.result_type(a), np.number) and np.isfinite(a) and np.isfinite(b)):
        return False
    return bool(a != b)


def _led_to_indices(jaxpr: Any) -> set[int]:
    """Variables that indices were computed from, by identity."""
    led: set[int] = set()
    for eqn in reversed(jaxpr.eqns):
        is_index = any(id(variable) in led for variable in eqn.outvars)
        if eqn.primitive.name.startswith(_INDEXING):
            led.update(id(atom) for atom in eqn.invars[1:])
        if is_index:
            led.update(id(atom) for atom in eqn.invars)
    return led
