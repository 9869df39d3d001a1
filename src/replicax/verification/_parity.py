"""The check of parity: the step gives what one device gives on the same global batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from replicax.errors import Table
from replicax.step import _compat
from replicax.values import Variable

from ._captured import Captured
from ._causes import Cause, cause_among_noise, cause_of
from ._compared import Entry, relative_tolerance
from ._one_device import Comparison, OneDevice, Taken
from ._program import Program, draws_its_own
from ._report import Finding, Status
from ._state import Array, NotComparable

_CHECK = "parity"
_MOST_ROWS = 12


def parity(one: OneDevice, program: Program, steps: Sequence[Taken]) -> Iterator[Finding]:
    """Gradients, updated state and results equal those of one device."""
    coarsest = _narrowest(program, steps)
    for taken in steps:
        try:
            comparison = one.compare(taken, coarsest)
            other, again = _with_one_replica(one, comparison, coarsest)
        except NotComparable as reason:
            yield Finding(
                _CHECK, Status.NOT_CHECKED, f"{taken.label} is not compared.", why=f"{reason}."
            )
            continue
        except Exception as error:  # noqa: BLE001 - the user's own code runs here
            yield Finding(
                _CHECK,
                Status.NOT_CHECKED,
                f"{taken.label} cannot be taken on one device: {type(error).__name__}.",
                why=f"On one device, with all rows of the batch, it raised: {error}",
                fix="Write the step for any number of rows and replicas: no fixed shape.",
            )
            return
        finding = _judged(one, comparison, program, coarsest)
        if again is not None and other is not None:
            if comparison.differing and not again.differing:
                one = other
                finding = _judged(one, again, program, coarsest)
                finding = dataclasses.replace(finding, why=_about(one.captured, is_taken=True))
            elif again.differing and not comparison.differing:
                why = _about(other.captured, is_taken=False)
                finding = dataclasses.replace(finding, status=Status.WARNING, why=why)
        yield finding
        if finding.status is Status.FAILED:
            return  # What follows would only say it again.


def _with_one_replica(
    one: OneDevice, comparison: Comparison, coarsest: int
) -> tuple[OneDevice | None, Comparison | None]:
    """The comparison where captured numbers of replicas are 1; None where there are none."""
    other = one.without_captured_numbers()
    if other is None:
        return None, None
    try:
        return other, other.compare(comparison.taken, coarsest)
    except Exception:  # noqa: BLE001 - the number may be needed for a shape
        return None, None


def _about(captured: Captured, *, is_taken: bool) -> str:
    names = ", ".join(f"`{name}`" for name in captured)
    what = (
        "on one device that was taken to be 1."
        if is_taken
        else "with 1 in its place, one device gives something else: is something divided by it, or "
        "multiplied, that should not be?"
    )
    return (
        f"The step takes the number of replicas from outside ({names}); {what} "
        "`strategy.num_replicas_in_sync` inside of the replica function is 1 on one device."
    )


def _narrowest(program: Program, steps: Sequence[Taken]) -> int:
    """Bytes of the narrowest floating type that the step computes in, at most 4."""
    dtypes = {
        array.dtype
        for each in steps
        for variable, array in each.before.variables.items()
        if _is_used(variable, program)
    }
    if program.look is not None:
        dtypes |= set(_computed_in(program.look.traced.jaxpr))
    return min([4, *(x.itemsize for x in dtypes if jnp.issubdtype(x, jnp.floating))])


def _computed_in(jaxpr: Any) -> Iterator[Any]:
    """The types of what the equations of a program give. Its inputs may be unused."""
    for eqn in _compat.opened(jaxpr)[0].eqns:
        yield from (x.aval.dtype for x in eqn.outvars if hasattr(x.aval, "dtype"))
        for nested in _compat.nested_jaxprs(eqn):
            yield from _computed_in(nested)


def _rounded_on_the_way(program: Program) -> str:
    """Why the tolerance is that of half precision, where arrays travel in it."""
    runs = program.look.traced.runs if program.look is not None else ()
    wires = {entry.wire_dtype for run in runs for entry in run.requested} - {None}
    if not wires:
        return ""
    return f" (arrays travel as {', '.join(sorted(map(str, wires)))} between the replicas)"


def _is_used(variable: Variable, program: Program) -> bool:
    """Whether the step uses a variable: others that live may be of any type."""
    if program.look is None:
        return variable.strategy is not None
    return variable in program.look.traced.used


def _judged(one: OneDevice, comparison: Comparison, program: Program, coarsest: int) -> Finding:
    label = comparison.taken.label
    tolerance = (
        f"{relative_tolerance(coarsest):g} of the largest change of each array, or ten times what "
        "one device differs from itself with the rows in reverse order"
    ) + _rounded_on_the_way(program)
    differing = comparison.differing
    is_random = draws_its_own(program) or comparison.depends_on_order
    if not differing:
        rounding = [each.name for each in comparison.state if each.is_rounding and each.scale]
        is_close = all(x.apart <= x.strict for x in (*comparison.state, *comparison.aux))
        if is_random and not is_close:
            return _not_compared(comparison, program)
        return Finding(
            _CHECK,
            Status.PASSED,
            f"{label} gives what one device gives: {len(comparison.state)} arrays of state and "
            f"{len(comparison.aux)} results, within {tolerance}.",
            _table([*comparison.state, *comparison.aux]),
            why=None
            if not rounding
            else f"Rounding alone decides how {', '.join(rounding[:4])} change: not compared.",
        )
    if is_random:
        cause = cause_among_noise(comparison.state, len(comparison.taken.rows.counts or ()))
        differing = [x for x in comparison.state if x.scale]
    else:
        cause = cause_of(comparison.before, differing, comparison.taken, one, program)
    if cause is None and is_random:
        return _not_compared(comparison, program)
    worst = differing[0]
    table = _table(differing)
    only_aux = not is_random and not any(each.differs for each in comparison.state)
    what = (
        f"{label} does not give what one device gives: "
        f"{'the result' if only_aux else 'the first array that differs is'} `{worst.name}`, by "
        f"{worst.apart:.3g} where one device changes it by {worst.scale:.3g}."
    )
    if only_aux:
        what = (
            f"{label} returns another number than one device: `{worst.name}` is "
            f"{_number(worst.replicas)} and {_number(worst.one)} on one device. The state is that "
            "of one device."
        )
    status = Status.WARNING if only_aux and cause is None else Status.FAILED
    cause = cause or Cause(
        "The pattern is none of those that are known. Tolerance: " + tolerance + ".",
        "Look at what the replica function computes from its own rows alone before it combines.",
    )
    return Finding(_CHECK, status, what, table, cause.why, cause.fix)


def _not_compared(comparison: Comparison, program: Program) -> Finding:
    draws = draws_its_own(program)
    why = (
        "Each replica draws random numbers of its own, so one device has other masks and noise, "
        "and other numbers are right."
        if draws
        else "One device gives other numbers when the rows come in another order, so the step "
        "depends on the place of a row: random numbers, or what is computed from row to row."
    )
    return Finding(
        _CHECK,
        Status.NOT_CHECKED,
        f"{comparison.taken.label} is not compared with one device.",
        why=why,
        fix="Verify the same step without them: `model.eval()`, a dropout rate of 0.",
    )


def _table(entries: Sequence[Entry]) -> Table | None:
    rows = [
        (
            each.name,
            f"{_size(each.replicas):.4g}",
            f"{each.scale:.4g}",
            f"{each.apart:.2g}",
            f"{each.tolerance:.2g}",
        )
        for each in entries[:_MOST_ROWS]
    ]
    if not rows:
        return None
    return Table(("array", "change on replicas", "on one device", "apart", "allowed"), rows)


def _size(x: Array) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def _number(x: Array) -> str:
    return f"{float(np.real(x.ravel()[0])):.6g}"
