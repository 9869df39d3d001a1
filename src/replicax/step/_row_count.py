"""Padded row counts that a step uses as numbers, such as ``len(x)``.

In a compiled step the length of a padded batch is the padded one, and Python computes with it
unseen. But a second trace, with one row more, has another number in that place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax import errors
from replicax.step._compat import (
    equation_site,
    literal_type,
    nested_jaxprs,
    opened,
    scan_lengths,
)

# A number that is compared, or that says where something stands, is about places in the padded
# arrays, and counts nothing.
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_INDEXING = ("gather", "scatter", "dynamic_slice", "dynamic_update_slice")


def check_row_count(label: str, program: Any, wider: Any) -> None:
    """Refuse a program that puts the padded number of rows into an output.

    Args:
        label: How messages call the batch.
        program: The jaxpr of what one replica runs.
        wider: The same for one row more.

    Raises:
        UnusedMaskError: Naming the line.
    """
    walk = _Walk()
    if not any(walk.reached(program, wider, [False] * len(opened(program)[0].invars))):
        return
    number, site = walk.number, walk.site
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


class _Walk:
    """Follows constants that differ between two traces to the outputs of the first."""

    def __init__(self) -> None:
        self.number: Any = None
        self.site: errors.CallSite | None = None

    def reached(self, one: Any, other: Any, counted: Sequence[bool]) -> list[bool]:
        """Which outputs such a constant reached.

        Args:
            one: A jaxpr.
            other: The same part of the other trace.
            counted: Which inputs one has reached already.
        """
        (jaxpr, consts), (jaxpr2, consts2) = opened(one), opened(other)
        if [e.primitive for e in jaxpr.eqns] != [e.primitive for e in jaxpr2.eqns]:
            return [False] * len(jaxpr.outvars)  # Another program: nothing can be compared.
        marked = {id(v) for v, is_counted in zip(jaxpr.invars, counted, strict=True) if is_counted}
        for variable, a, b in zip(jaxpr.constvars, consts, consts2, strict=False):
            if self._is_other_number(a, b, None):
                marked.add(id(variable))
        for eqn, eqn2 in zip(jaxpr.eqns, jaxpr2.eqns, strict=True):
            inputs = [
                id(a) in marked or self._is_other_number(_constant(a), _constant(b), eqn)
                for a, b in zip(eqn.invars, eqn2.invars, strict=True)
            ]
            outputs = self._through(eqn, eqn2, inputs)
            marked.update(id(v) for v, hit in zip(eqn.outvars, outputs, strict=True) if hit)
        return [
            id(a) in marked or self._is_other_number(_constant(a), _constant(b), None)
            for a, b in zip(jaxpr.outvars, jaxpr2.outvars, strict=True)
        ]

    def _through(self, eqn: Any, eqn2: Any, inputs: list[bool]) -> list[bool]:
        name = eqn.primitive.name
        if name in _COMPARISONS:
            return [False]
        if name.startswith(_INDEXING):
            values = 2 if name == "dynamic_update_slice" else 1
            return [any(inputs[:values]) or (name.startswith("scatter") and inputs[2])]
        inner = list(zip(nested_jaxprs(eqn), nested_jaxprs(eqn2), strict=False))
        results = []
        for one, other in inner:
            count = len(opened(one)[0].invars)
            if count > len(inputs) or len(opened(one)[0].outvars) != len(eqn.outvars):
                return [any(inputs)] * len(eqn.outvars)
            own = inputs[len(inputs) - count :]  # A `cond` has its index in front.
            result = self.reached(one, other, own)
            if name == "scan":
                consts, carry = scan_lengths(eqn.params)
                again = zip(own[consts : consts + carry], result[:carry], strict=True)
                own[consts : consts + carry] = [a or b for a, b in again]
                result = self.reached(one, other, own)
            results.append(result)
        if not results:
            return [any(inputs)] * len(eqn.outvars)
        return [any(column) for column in zip(*results, strict=True)]

    def _is_other_number(self, a: Any, b: Any, eqn: Any) -> bool:
        if not _differ(a, b):
            return False
        if self.number is None:
            self.number = a
            self.site = equation_site(eqn) if eqn is not None else None
        return True


def _constant(atom: Any) -> Any:
    value: Any = getattr(atom, "val", None)
    return value if isinstance(atom, literal_type()) else None


def _differ(a: Any, b: Any) -> bool:
    """Whether both are numbers, and not the same."""
    if a is None or b is None or np.shape(a) != () or np.shape(b) != ():
        return False
    if isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer):
        return False
    if not (np.issubdtype(np.result_type(a), np.number) and np.isfinite(a) and np.isfinite(b)):
        return False
    return bool(a != b)
