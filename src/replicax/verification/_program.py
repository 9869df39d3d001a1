"""The checks of the program: its collectives carry every trainable byte; random streams differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from replicax.collectives import collectives_in, looking_ahead
from replicax.errors import ReplicaxError, Table
from replicax.step import function
from replicax.step._looking import Look, look

from ._calls import Call
from ._facts import CompiledCollective, SentCollective
from ._flow import Draw, Flow, Meeting, Value, flow_of
from ._report import Finding, Status

_MOST_ROWS = 20


@dataclasses.dataclass(frozen=True)
class Program:
    """The program of a step, as far as it can be looked at.

    Attributes:
        flow: What flows where; None where the step cannot be traced.
        look: The trace; None as well.
        refused: Why the library refuses the step, if it does.
        untraceable: Why the step cannot be traced, if it cannot.
    """

    flow: Flow | None
    look: Look | None
    refused: ReplicaxError | None = None
    untraceable: str | None = None


def program_of(call: Call, batch: Any) -> Program:
    """Traces a step, without running it. A plain function is traced as an `rx.function`."""
    if call.trains_itself:
        return Program(None, None, untraceable="its library compiles the step of a model")
    step: Any = call.step if call.is_compiled else function(call.step)
    try:
        with looking_ahead():
            seen = look(step, call.arguments(call.first, batch), {})
    except ReplicaxError as error:
        if call.is_compiled:
            return Program(None, None, refused=error)
        return Program(None, None, untraceable=_first_line(error))
    except Exception as error:
        if call.is_compiled:
            raise
        return Program(None, None, untraceable=_first_line(error))
    return Program(flow_of(seen.traced, _state_leaves(call)), seen)


def _state_leaves(call: Call) -> int:
    return len(jax.tree.leaves(call.first)) if call.is_functional else 0


def _first_line(error: Exception) -> str:
    text = str(error).strip() or "no message"
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}"


# -- collectives -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Carried:
    """One piece of trainable state that the step writes."""

    name: str
    bytes: int
    value: Value


def collectives(program: Program, call: Call, replicas: int) -> Iterator[Finding]:
    """The compiled program holds collectives that carry every trainable byte."""
    check = "collectives"
    if program.flow is None or program.look is None:
        reason = program.untraceable or "the step was refused"
        yield Finding(
            check,
            Status.NOT_CHECKED,
            "The step has no compiled program to look at.",
            why=f"It is no `rx.function`, and cannot be traced as one: {reason}",
            fix=None if call.trains_itself else "Decorate it with `rx.function`.",
        )
        return
    if replicas == 1:
        yield Finding(check, Status.PASSED, "One replica: nothing has to be sent.")
        return
    flow = program.flow
    if not flow.has_replicas:
        yield Finding(
            check,
            Status.FAILED,
            f"`{call.name}` ran on one device: `strategy.run` was never called, and the {replicas} "
            "replicas do nothing.",
            why="A step runs on the replicas where it calls `strategy.run`.",
            fix="Call `strategy.run(replica_step, args=(batch,))` in it.",
        )
        return
    carried = list(_carried(program.look, flow, call))
    lonely = [each for each in carried if not (each.value.is_combined or each.value.is_stacked)]
    table = _table(flow, carried, replicas)
    if lonely:
        yield _not_carried(lonely, flow, table, is_all=len(lonely) == len(carried))
        return
    size = sum(each.bytes for each in carried)
    if not carried:
        trains = call.is_functional or any(v.trainable for v in program.look.traced.used)
        yield Finding(
            check,
            Status.NOT_CHECKED if trains else Status.PASSED,
            f"`{call.name}` trains nothing that collectives could carry.",
            table,
            why="It uses trainable state and writes none: either it only evaluates, or what it "
            "computes is thrown away (a variable that is not written, a new state that is not "
            "returned)."
            if trains
            else None,
        )
        return
    yield Finding(
        check,
        Status.PASSED,
        f"All {size} bytes of trainable state that the step writes depend on collectives over "
        f"{replicas} replicas.",
        table,
    )


def _carried(seen: Look, flow: Flow, call: Call) -> Iterator[_Carried]:
    """The trainable variables that are written, and the floating arrays of a functional state."""
    traced = seen.traced
    for variable, value in zip(traced.written, flow.outputs, strict=False):
        if variable.trainable and np.issubdtype(np.dtype(variable.dtype), np.inexact):
            size = variable.size * variable.dtype.itemsize
            yield _Carried(variable.name, size, value)
    if not call.is_functional:
        return
    outputs = flow.outputs[len(traced.written) :]
    numbered = traced.result.unflatten(range(len(outputs)))
    state, _ = call.parted(numbered)
    shapes = jax.tree.leaves(traced.form)
    given = _unchanged(seen, call)
    for path, number in jax.tree_util.tree_flatten_with_path(state)[0]:
        shape = shapes[number]
        if not jax.numpy.issubdtype(shape.dtype, np.inexact) or number in given:
            continue
        name = f"state{jax.tree_util.keystr(path)}"
        yield _Carried(name, shape.size * shape.dtype.itemsize, outputs[number])


def _unchanged(seen: Look, call: Call) -> set[int]:
    """Results that are arguments, handed through."""
    del call
    jaxpr = seen.traced.jaxpr.jaxpr
    inputs = set(map(id, jaxpr.invars))
    results = jaxpr.outvars[len(seen.traced.written) :]
    return {i for i, x in enumerate(results) if id(x) in inputs}


def _not_carried(
    lonely: list[_Carried], flow: Flow, table: Table | None, *, is_all: bool
) -> Finding:
    names = ", ".join(f"`{each.name}`" for each in lonely[:8])
    more = f" and {len(lonely) - 8} more" if len(lonely) > 8 else ""  # noqa: PLR2004 - as above
    size = sum(each.bytes for each in lonely)
    met = any(each.value.meetings for each in lonely)
    why = (
        "The collectives combine values that are equal on all replicas: every replica computes the "
        "same from the same data."
        if met
        else "Its new value comes from no collective: it is computed from what all replicas see "
        "alike, so no replica's rows count."
    )
    if not any(each.is_needed for each in flow.meetings):
        why += " Nothing that the replicas send differs between them."
    if not is_all:
        why += " That is right for what is not learned from rows, such as a schedule."
    return Finding(
        "collectives",
        Status.FAILED if is_all else Status.WARNING,
        f"{size} bytes of trainable state are carried by no collective that combines the replicas: "
        f"{names}{more}.",
        table,
        why=why,
        fix="Pass a batch of `strategy.distribute_dataset(dataset)` to `strategy.run(replica_step, "
        "args=(batch,))`, compute the gradient from it, and combine it: "
        "`ctx.all_reduce('mean', gradient)`.",
    )


def _table(flow: Flow, carried: list[_Carried], replicas: int) -> Table | None:
    if not flow.meetings:
        return None
    rows = [
        (f"#{each.number}", each.op, each.arrays, each.bytes, each.group, each.line, _names(each))
        for each in sent(flow, carried, replicas)[:_MOST_ROWS]
    ]
    return Table(("", "op", "arrays", "bytes", "replicas", "line", "carries"), rows)


def _names(each: SentCollective) -> str:
    shown = ", ".join(each.carries[:4])
    return shown + (f" and {len(each.carries) - 4} more" if len(each.carries) > 4 else "")  # noqa: PLR2004


def sent(flow: Flow, carried: list[_Carried], replicas: int) -> list[SentCollective]:
    """The collectives as facts."""
    return [
        SentCollective(
            number=number + 1,
            op=meeting.op,
            arrays=len(meeting.shapes),
            bytes=meeting.bytes,
            group=replicas,
            line=_line(meeting),
            carries=tuple(each.name for each in carried if number in each.value.meetings),
        )
        for number, meeting in enumerate(flow.meetings)
    ]


def facts_of(
    program: Program, call: Call, replicas: int
) -> tuple[tuple[SentCollective, ...], tuple[CompiledCollective, ...] | None]:
    """The collectives of the step, and those of XLA's program."""
    if program.flow is None or program.look is None:
        return (), None
    carried = list(_carried(program.look, program.flow, call))
    asked = tuple(sent(program.flow, carried, replicas))
    lowered = program.look.lowered
    if lowered is None:
        return asked, None
    found = collectives_in(lowered.compile().as_text() or "")
    return asked, tuple(CompiledCollective(x.kind, x.name, len(x.shapes), x.bytes) for x in found)


def _line(meeting: Meeting) -> str:
    return "unknown" if meeting.site is None else str(meeting.site)


# -- random numbers --------------------------------------------------------------------------------


def random_streams(program: Program, replicas: int) -> Iterator[Finding]:
    """Where the step draws random numbers for rows, each replica draws its own."""
    check = "random"
    if program.flow is None:
        yield Finding(
            check,
            Status.NOT_CHECKED,
            "Which random numbers the replicas draw is not known.",
            why=f"The step cannot be traced: {program.untraceable or 'it was refused'}",
        )
        return
    draws = program.flow.draws
    alike = [draws[number] for number in sorted(program.flow.laid_over_rows)]
    if alike and replicas > 1:
        rows = [(_words(each), str(list(each.shape)), str(each.site or "")) for each in alike]
        is_constant = all(each.is_constant for each in alike)
        what = "lay the same constant array over" if is_constant else "draw the same numbers for"
        yield Finding(
            check,
            Status.FAILED,
            f"The replicas {what} different rows, {len(alike)} time(s).",
            Table(("what", "shape on a replica", "line"), rows[:_MOST_ROWS]),
            why="An array with an entry for each row of a replica is a constant of the program, "
            "equal on all replicas and in all steps, such as noise that NumPy drew while the step "
            "was traced."
            if is_constant
            else "The key is equal on all replicas, so row i of each gets the same numbers: "
            "dropout masks and noise repeat, and are weaker than on one device.",
            fix="Draw with JAX: `jax.random.normal(ctx.rng(), x.shape)`."
            if is_constant
            else "Take the key from the context: `rx.get_replica_context().rng()`, or `.rng(key)`, "
            "which folds the replica's number in.",
        )
        return
    draws = tuple(each for each in draws if not each.is_constant)
    if not draws:
        yield Finding(check, Status.PASSED, "The replicas draw no random numbers.")
        return
    own = sum(each.varies for each in draws)
    yield Finding(
        check,
        Status.PASSED,
        f"Of {len(draws)} draws of random numbers, {own} are each replica's own; the others are "
        "not laid over rows.",
    )


def _words(draw: Draw) -> str:
    return "constant" if draw.is_constant else "random numbers"


def draws_its_own(program: Program) -> bool:
    """Whether replicas draw different random numbers."""
    return program.flow is not None and any(each.varies for each in program.flow.draws)
