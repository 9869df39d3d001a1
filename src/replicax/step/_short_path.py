"""The path of a step through the two commonest kinds of program, as short as it can be.

`Program.run` serves every program. Here everything that it looks up is looked up once, in the
cells of a closure: between the steps of a training loop the caches are cold, and each attribute of
an object is another place to fetch. ARCHITECTURE.md has the budget of its parts, and
`benchmarks/overhead.py` measures it. Whatever is not as in the last run goes to `Program.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from replicax.collectives import TURNS
from replicax.recording import RECORDER
from replicax.step._access import out_of_reach
from replicax.step._first_leaves import Way
from replicax.values._tracing import is_concrete

if TYPE_CHECKING:
    from replicax.step._program import Program

Path = Callable[[Sequence[Any], dict[str, Any]], Any]

NOT_THERE = (AttributeError, LookupError, TypeError)
"""What a look-up raises in a tree of another structure."""


def short_path(program: Program, lock: Any) -> Path:
    """The shortest path for a program.

    Args:
        program: The program.
        lock: What is held while a program is started.
    """
    is_special = (
        program._has_more
        or program._moves
        or bool(program._donated_names or program._guards)
        or program._spans_processes  # What starts it is known once the workers have compared it.
    )
    if is_special or len(program._watched) > 1:
        return program.run
    if program.written:
        return program.run if program._watched else _with_variables(program, lock)
    is_chain = program.donated and program._watched
    return _without_variables(program, lock) if is_chain else program.run


def _with_variables(program: Program, lock: Any) -> Path:
    """A step that replaces variables, all of them in one cell."""
    general, call, cell = program.run, program._call, program._cell
    takes_turns, most, takes_one = program._takes_turns, program._most, program.num_args == 1
    turns = TURNS
    keep, clock, subject = RECORDER.keep, monotonic_ns, program.subject
    kind: Any = None
    seen = -1

    def run(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        nonlocal kind, seen
        if kwargs or turns.changes != seen:
            result = general(args, kwargs)
            seen = program.changes_seen
            return result
        if takes_one:
            (one,) = args
        with lock:
            written = cell.arrays
            if written is None:
                return general(args, kwargs)
            if takes_turns and (written[0] is not turns.output or turns.in_a_row >= most):
                turns.settle()
            entry = [subject, clock(), 0, None, None]
            keep(entry)
            new, result, _ = call(written, one) if takes_one else call(written, *args)
            entry[3] = number = subject.runs
            subject.runs = number + 1
            entry[2] = clock()
            output = new[0]
            if output.__class__ is not kind:
                if not is_concrete(type(output)):
                    raise out_of_reach(program.written[0])
                kind = type(output)
            cell.arrays = new
            if takes_turns:
                turns.output = output
                turns.in_a_row += 1
        return result

    return run


def _without_variables(program: Program, lock: Any) -> Path:
    """A step whose state is an argument, in the place of the first watched leaf."""
    general, call = program.run, program._call
    watched = program._watched[0]
    place, way_to_first = watched.path[1].idx, watched.way[1:]
    takes_turns, most = program._takes_turns, program._most
    turns = TURNS
    keep, clock, subject = RECORDER.keep, monotonic_ns, program.subject
    way_to_output: Way = ()
    kind: Any = None
    seen = -1

    def run(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        nonlocal kind, seen, way_to_output
        if kwargs or turns.changes != seen:
            result = general(args, kwargs)
            seen = program.changes_seen
            return result
        first: Any = args[place]
        for look_up in way_to_first:
            first = look_up(first)
        if first.__class__ is not kind:
            if not is_concrete(type(first)):
                return general(args, kwargs)
            kind = type(first)
        if first.is_deleted():
            return general(args, kwargs)
        with lock:
            if takes_turns and (first is not turns.output or turns.in_a_row >= most):
                turns.settle()
            entry = [subject, clock(), 0, None, None]
            keep(entry)
            _, result, _ = call(*args)
            entry[3] = number = subject.runs
            subject.runs = number + 1
            entry[2] = clock()
            if takes_turns:
                output = result
                try:
                    for look_up in way_to_output:
                        output = look_up(output)
                except NOT_THERE:  # A trace whose result has another structure.
                    output = None
                if output.__class__ is not kind and not is_concrete(type(output)):
                    output = program._find_output(result)
                    way_to_output = program._way_to_output
                turns.output = output
                turns.in_a_row += 1
        return result

    return run
