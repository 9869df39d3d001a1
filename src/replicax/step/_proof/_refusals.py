"""The errors of the proof pass."""

from __future__ import annotations

from typing import NoReturn

from replicax.errors import (
    CallSite,
    Origin,
    Table,
    UnprovenError,
    VaryingControlFlowError,
    VaryingWriteError,
    describe,
)

from ._kinds import Control, Source

_UNKNOWN_LINE = "a line that is not known"
_NAMES = {
    "psum": "sum over the replicas (psum)",
    "pmax": "maximum over the replicas (pmax)",
    "pmin": "minimum over the replicas (pmin)",
}


def refuse_collective(name: str, call_site: CallSite | None, control: Control) -> NoReturn:
    """A collective stands under a condition that varies."""
    is_loop = control.construct == "while"
    where = "a loop of which replicas may run different numbers of rounds"
    if not is_loop:
        where = "a branch that some replicas may not take"
    source = control.source
    table = Table(
        ["what", "where"],
        [
            [f"collective: {_NAMES.get(name, name)}", _line(call_site)],
            [f"condition: of `{control.construct}`", _line(control.call_site)],
            [f"varies because of: {source.description}", source.call_site or ""],
        ],
    )
    message = describe(
        f"The collective `{name}` at {_line(call_site)} stands in {where}: the condition of "
        f"the `{control.construct}` at {_line(control.call_site)} varies between replicas.",
        table=table,
        why="a replica that skips the collective would leave the others waiting in it.",
        fix=(
            "call the collective before or after it, outside; or compute both sides on all "
            "replicas and choose with jnp.where; or make the condition equal on all replicas, "
            "for example by an all_reduce of it."
        ),
    )
    raise VaryingControlFlowError(message, origin=Origin(call_site=call_site))


def refuse_primitive(name: str, call_site: CallSite | None, why: str | None) -> NoReturn:
    """A primitive that the pass does not know."""
    known = f"here {why}." if why else "the results could depend on the replica."
    message = describe(
        f"The proof does not know the primitive `{name}`, used at {_line(call_site)}.",
        why=f"it must know whether equal inputs give equal results on all replicas; {known}",
        fix=(
            "if the results depend on the inputs alone, call "
            f'register_primitive("{name}", "pointwise") once before the step is traced; if they '
            'may differ between replicas, register it as "varying".'
        ),
    )
    raise UnprovenError(message, origin=Origin(call_site=call_site))


def refuse_construct(name: str, call_site: CallSite | None, why: str) -> NoReturn:
    """A known primitive in a form that the pass cannot read."""
    message = describe(
        f"The proof cannot read this `{name}`, used at {_line(call_site)}.",
        why=why,
        fix="write that part of the step without it, or report this as a defect.",
    )
    raise UnprovenError(message, origin=Origin(call_site=call_site))


def refuse_unreadable(name: str, call_site: CallSite | None, error: Exception) -> NoReturn:
    """A known primitive with parameters of another form than the pass expects."""
    why = f"its parameters have another form in this release of jax ({error!r})."
    message = describe(
        f"The proof cannot read this `{name}`, used at {_line(call_site)}.",
        why=why,
        fix="use a release of jax that is supported, or report this as a defect.",
    )
    raise UnprovenError(message, origin=Origin(call_site=call_site)) from error


def refuse_leaked_tracer(user: str, call_site: CallSite | None) -> NoReturn:
    """A variable that nothing in the jaxpr defines, or a constant of a trace that has ended."""
    message = describe(
        f"The replica function uses a leaked tracer: {user} at {_line(call_site)} reads a value "
        "that belongs to another traced function.",
        why=(
            "a value made in a branch, a loop body or another transformed function was kept, in "
            "a list or an attribute, after that function had returned; nothing is known of it."
        ),
        fix="return the value from the inner function instead of storing it outside.",
    )
    raise UnprovenError(message, origin=Origin(call_site=call_site))


def refuse_reference_write(number: int, source: Source) -> NoReturn:
    """A mirrored reference that came in from outside was written with a varying value."""
    message = describe(
        f"The mirrored reference that is input {number} of the replica function was written "
        f"with a varying value: {source}.",
        why="the copies on the replicas would no longer be equal.",
        fix="all_reduce the value before it is written.",
    )
    raise VaryingWriteError(message, origin=Origin(call_site=source.call_site))


def refuse_varying(call: str, name: str, call_site: CallSite | None, source: Source) -> NoReturn:
    """A value that varies was given to a function that takes reduced gradients."""
    message = describe(
        f"`{call}` was given values that may differ between replicas: {name}, at "
        f"{_line(call_site)}.",
        table=Table(["varies because of", "where"], [[source.description, source.call_site or ""]]),
        why="It acts on the gradient of the global batch. What it makes of one replica's gradient "
        "is another number, on each replica.",
        fix="Combine the gradients first: `gradients = ctx.all_reduce('mean', gradients)`.",
    )
    raise VaryingWriteError(message, origin=Origin(call_site=call_site))


def _line(call_site: CallSite | None) -> str:
    return _UNKNOWN_LINE if call_site is None else str(call_site)
