"""What the processes of a strategy compare before they run a compiled step together."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from replicax import errors
from replicax.cluster import agree, digest_of, entry_of, first_difference, gather
from replicax.collectives import Entry
from replicax.step._arguments import argument_name
from replicax.step._trace import Traced
from replicax.values import PerReplica, Variable
from replicax.values._workers import digest

if TYPE_CHECKING:
    from replicax.step._program import Program

CHECK = "REPLICAX_CHECK"
"""The environment variable that says how much is compared."""

_LEVELS = ("collectives", "program", "strict")
_MOST_LEAVES = 2000
_LONGEST_LINE = 300

# Values are counted: one operation more gives all after it other names.
_VALUE = re.compile(r"%\w+")
# An address in one process: where the program calls back to.
_ADDRESS = re.compile(r'(callback\(.*backend_config = )"\d+"')


def check_level() -> str:
    """How much the workers compare: `program` unless the environment says otherwise.

    Raises:
        InvalidArgumentError: The environment says something unknown.
    """
    level = os.environ.get(CHECK) or "program"
    if level not in _LEVELS:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"The environment has {CHECK}={level!r}.",
                fix=f"Set it to one of {', '.join(_LEVELS)}, or leave it out.",
            )
        )
    return level


def compare_program(
    program: Program, traced: Traced, args: Any, kwargs: Any, given: Any, names: Sequence[str]
) -> int:
    """Make sure that all workers are about to run the same program. Collective.

    The plain arguments of this first call, the collectives and the whole program, with its
    constants, are compared.

    Args:
        program: The program.
        traced: The trace that it runs.
        args: The arguments, placed.
        kwargs: The named arguments, placed.
        given: Both as they came.
        names: The names of the parameters.

    Returns:
        The entry of the program in the order of what runs; the same on all workers.

    Raises:
        CollectiveMismatchError: They differ; the error has a row a worker.
    """
    name = program.function.__name__
    collectives = [_signature(entry) for entry in traced.entries]
    lines = [] if check_level() == "collectives" else _lines(program, traced, args, kwargs)
    digests = {"collectives": digest_of(collectives), "program": digest_of(lines)}
    records = agree(
        f"the first call of `{name}`",
        plain_arguments(given[0], given[1], names),
        untold=digests,
        why="Plain arrays and numbers are arguments that are the same on every replica, on all "
        "workers.",
        fix="Pass rows of each worker's own as a batch of `strategy.distribute_dataset`, or as a "
        "value of `strategy.distribute_values_from_function`.",
    )
    if any(record["collectives"] != digests["collectives"] for record in records):
        raise _other_collectives(name, traced.entries, first_difference(collectives) or 0)
    if any(record["program"] != digests["program"] for record in records):
        place = first_difference([_VALUE.sub("%", line) for line in lines])
        place = first_difference(lines) if place is None else place
        raise _other_program(name, lines, place or 0)
    return entry_of(f"{name} {digests}")


def compare_call(name: str, args: Any, kwargs: Any, names: Sequence[str]) -> None:
    """Make sure that all workers call a step alike. Collective.

    Arrays that all workers have made together need no comparison.

    Raises:
        CollectiveMismatchError: They do not, or have run other programs before.
    """
    agree(
        f"a call of `{name}`",
        plain_arguments(args, kwargs, names, is_first=False),
        why=f"{CHECK}=strict compares each call.",
        fix="Pass the same plain arguments on every worker.",
    )


def plain_arguments(
    args: Any, kwargs: Any, names: Sequence[str], *, is_first: bool = True
) -> dict[str, str]:
    """What tells the arguments of workers apart, by name."""
    with_paths, _ = jax.tree_util.tree_flatten_with_path(
        (args, kwargs), is_leaf=lambda value: isinstance(value, (PerReplica, Variable))
    )
    return {
        f"`{argument_name(path, names)}`": _kind(value, is_first=is_first)
        for path, value in with_paths
    }


def _kind(value: Any, *, is_first: bool) -> str:
    if isinstance(value, (PerReplica, Variable)):
        return repr(value)
    shape = getattr(value, "shape", ())
    dtype = getattr(value, "dtype", type(value).__name__)
    kind = f"{dtype}[{', '.join(map(str, shape))}]"
    is_common = isinstance(value, jax.Array) and not value.is_fully_addressable
    return kind if is_common and not is_first else f"{kind} {digest(value)}"


# --- the program -----------------------------------------------------------------------------


def _signature(entry: Entry) -> str:
    """What must be equal; not the keys, which count what was only looked at, too."""
    leaves = zip(entry.dtypes, entry.shapes, strict=True)
    return " ".join([entry.kind, str(entry.op), *(f"{dtype}{shape}" for dtype, shape in leaves)])


def _lines(program: Program, traced: Traced, args: Any, kwargs: Any) -> list[str]:
    """The text of the program, and the constants that it was traced with."""
    text = program.lowered(args, kwargs).as_text()
    constants = [f"constant {_kind(value, is_first=True)}" for value in traced.jaxpr.consts]
    return [*_ADDRESS.sub(r'\1""', text).splitlines(), *constants]


def _other_collectives(
    name: str, entries: Sequence[Entry], place: int
) -> errors.CollectiveMismatchError:
    """The error of programs with different collectives. Collective."""
    told = gather("collective", _told(entries[place]) if place < len(entries) else None)
    leaves = [one["leaves"] if one else [] for one in told]
    leaf = next((i for i, column in enumerate(zip(*leaves, strict=False)) if _differ(column)), 0)
    rows = [
        (
            worker,
            one["name"],
            one["op"],
            *(one["leaves"][leaf] if leaf < len(one["leaves"]) else ("-", "-")),
            len(one["leaves"]),
            one["group"],
            one["instance"],
            one["at"],
        )
        if one
        else (worker, "no more", "-", "-", "-", "-", "-", "-", "-")
        for worker, one in enumerate(told)
    ]
    columns = ("worker", "name", "op", "dtype", "shape", "arrays", "group", "instance", "at")
    return errors.CollectiveMismatchError(
        errors.describe(
            f"The workers disagree on collective {place + 1} of `{name}`. Nothing was run.",
            table=errors.Table(columns, rows),
            why="All workers must run one program, with the same collectives in the same order.",
            fix="Do not let the step depend on what only one worker knows, such as its rank.",
        )
    )


def _told(entry: Entry) -> dict[str, Any]:
    leaves = list(zip(entry.dtypes, map(str, entry.shapes), strict=True))
    return {
        "name": entry.kind,
        "op": entry.op or "-",
        "leaves": leaves[:_MOST_LEAVES],
        "group": entry.group_key,
        "instance": entry.instance_key,
        "at": str(entry.call_site or "not known"),
    }


def _other_program(name: str, lines: Sequence[str], place: int) -> errors.CollectiveMismatchError:
    """The error of programs that differ elsewhere. Collective."""
    line = lines[place].strip() if place < len(lines) else "no more"
    told = gather("line", _around(line, "..."))
    return errors.CollectiveMismatchError(
        errors.describe(
            f"The workers disagree on the program of `{name}`, in line {place + 1}. Nothing was "
            "run.",
            table=errors.Table(("worker", "operation or constant"), list(enumerate(told))),
            why="All workers must run one program. A number or an array that the step takes from "
            "outside is a constant of it.",
            fix="Let the step depend on nothing that differs between workers; pass rows of each "
            f"worker's own as a distributed batch. `{CHECK}=collectives` compares no more than "
            "the collectives.",
        )
    )


def _around(line: str, gap: str) -> str:
    """A line that is not too long, with its digest where it is."""
    if len(line) <= _LONGEST_LINE:
        return line
    half = _LONGEST_LINE // 2
    return f"{line[:half]} {gap} {line[-half:]} (digest {digest_of([line])})"


def _differ(column: Sequence[Any]) -> bool:
    return any(one != column[0] for one in column)
