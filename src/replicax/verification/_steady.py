"""The check of the trace: the step depends on nothing in Python that changes from call to call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from replicax.collectives import looking_ahead
from replicax.errors import Table
from replicax.step import function
from replicax.step._looking import look
from replicax.values import Variable

from ._calls import Call
from ._program import Program
from ._report import Finding, Status
from ._state import host

_CHECK = "trace"
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def steady(program: Program, call: Call, batch: Any) -> Iterator[Finding]:
    """The step is the same program when it is traced once more, and reads what it trains."""
    if program.look is None or program.flow is None:
        return
    step: Any = call.step if call.is_compiled else function(call.step)
    with looking_ahead():
        again = look(step, call.arguments(call.first, batch), {}).traced
    first = program.look.traced
    changed = _changed(first.jaxpr, again.jaxpr)
    if changed is not None:
        yield Finding(
            _CHECK,
            Status.FAILED,
            f"`{call.name}` is another program each time it is traced: {changed}.",
            why="It computes with something in Python that changes (a counter, a random number of "
            "NumPy or Python). A compiled step is traced once, so it keeps the value of the first "
            "call; an eager run, and a step for other shapes, have others.",
            fix="Keep what changes from step to step in a variable "
            "(`rx.Variable(0, trainable=False)`), or pass it as an argument.",
        )
        return
    held = _held_constants(first.jaxpr.consts, [v for v in first.written if _is_stale(v, program)])
    if held:
        names = ", ".join(f"`{name}`" for _, name in held)
        yield Finding(
            _CHECK,
            Status.FAILED,
            f"{names} is trained, but no value that the replicas combine is computed from the "
            "state.",
            Table(("constant of the step", "equals"), held),
            why="The gradient is taken at a constant: an array that was read from the variable "
            "before, and that the step keeps as it was then.",
            fix="Read the variable inside the step: `w.value` in the replica function, or "
            "`rx.value_and_grad(loss, [w])`.",
        )
        return
    yield Finding(_CHECK, Status.PASSED, "The step is the same program when it is traced again.")


def _changed(first: Any, again: Any) -> str | None:
    """How two traces differ, in words; None if they are the same."""
    lines = [list(_lines(x.jaxpr)) for x in (first, again)]
    for one, other in zip(*lines, strict=False):
        if one != other:
            pairs = zip(one.splitlines(), other.splitlines(), strict=False)
            a, b = next(((a, b) for a, b in pairs if a != b), (one, other))
            return f"`{a.strip()[:80]}`, then `{b.strip()[:80]}`"
    if len(lines[0]) != len(lines[1]):
        return "it has more or fewer operations"
    for one, other in zip(first.consts, again.consts, strict=False):
        if isinstance(one, jax.core.Tracer) or isinstance(other, jax.core.Tracer):
            continue
        a, b = host(one), host(other)
        if a.shape == b.shape and not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            return f"a constant {a.dtype}{list(a.shape)} has other values"
    return None


def _lines(jaxpr: Any) -> Iterator[str]:
    """The operations of a program, whatever inputs it has that it does not use."""
    numbers: dict[Any, int] = {}

    def name(x: Any) -> str:
        if hasattr(x, "val"):
            return str(x)
        return f"x{numbers.setdefault(x, len(numbers))}:{x.aval}"

    for eqn in jaxpr.eqns:
        operands = " ".join(map(name, eqn.invars))
        results = " ".join(map(name, eqn.outvars))
        parameters = " ".join(f"{key}={value}" for key, value in eqn.params.items())
        yield _ADDRESS.sub("", f"{eqn.primitive.name} {operands} -> {results}\n{parameters}")
    yield " ".join(map(name, jaxpr.outvars))


def _is_stale(variable: Variable, program: Program) -> bool:
    """Whether collectives carry a variable's new value, and none of them combines state."""
    flow, look = program.flow, program.look
    if flow is None or look is None or not variable.trainable or not _is_float(variable):
        return False
    value = flow.outputs[look.traced.written.index(variable)]
    carrying = [flow.meetings[number] for number in value.meetings]
    return bool(carrying) and not any(
        meeting.reads_state for meeting in flow.meetings if meeting.is_needed
    )


def _is_float(variable: Variable) -> bool:
    return bool(np.issubdtype(np.dtype(variable.dtype), np.inexact))


def _held_constants(
    constants: Sequence[Any], variables: Sequence[Variable]
) -> list[tuple[str, str]]:
    found = []
    for constant in constants:
        if isinstance(constant, jax.core.Tracer):
            continue
        array = host(constant)
        for variable in variables:
            now = host(variable._value)
            if array.shape == now.shape and np.array_equal(array, now):
                found.append((f"{array.dtype}{list(array.shape)}", variable.name))
    return found
