"""The path of a step through the two commonest kinds of program, as short as it can be.

`Program.run` serves every program. Here everything that it looks up is looked up once, in the
cells of a closure: between the steps of a training loop the caches are cold, and each attribute of
an object is another place to fetch. `benchmarks/overhead.py` shows what that is worth. Whatever
is not as in most steps goes to `Program.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from replicax.collectives import TURNS
from replicax.recording import RECORDER
from replicax.step._access import out_of_reach
from replicax.values._lending import COUNTER
from replicax.values._tracing import is_concrete

if TYPE_CHECKING:
    from replicax.step._program import Program

Path = Callable[[Sequence[Any], dict[str, Any]], Any]

NOT_THERE = (AttributeError, LookupError, TypeError)
"""What a look-up raises in a tree of another structure."""


def short_path(program: Program, lock: Any, donated_kinds: set[bool]) -> Path:
    """The shortest path for a program. Built anew when `donated_kinds` grows.

    Args:
        program: The program.
        lock: What is held while a program is started.
        donated_kinds: The kinds of arguments that some function donates.
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
        return _with_variables(program, lock, donated_kinds)
    return _without_variables(program, lock, donated_kinds)


def _with_variables(program: Program, lock: Any, donated_kinds: set[bool]) -> Path:
    """A step that replaces variables, all of them in one cell."""
    if program._watched:
        return program.run
    general, call, cell = program.run, program._call, program._cell
    kinds, takes_turns, most = len(donated_kinds), program._takes_turns, program._most
    turns, counter = TURNS, COUNTER
    recorder, clock, subject = RECORDER, monotonic_ns, program.subject
    next_run = subject.run

    def run(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if kwargs or len(donated_kinds) != kinds or program._lendings_seen != counter.lendings:
            return general(args, kwargs)
        with lock:
            written = cell.arrays
            if written is None:
                return general(args, kwargs)
            if takes_turns and (written[0] is not turns.output or turns.in_a_row >= most):
                turns.settle()
            entry = [subject, clock(), 0, None, None]
            recorder.append(entry)
            new, result, _ = call(written, *args)
            entry[3] = next_run()
            entry[2] = clock()
            output = new[0]
            if not is_concrete(type(output)):
                raise out_of_reach(program.written[0])
            cell.arrays = new
            if takes_turns:
                turns.output = output
                turns.in_a_row += 1
            if recorder.wait is not None:
                recorder.wait(entry, output)
        return result

    return run


def _without_variables(program: Program, lock: Any, donated_kinds: set[bool]) -> Path:
    """A step whose state is an argument, in the place of the first watched leaf."""
    if not program.donated or not program._watched:
        return program.run
    general, call, way_to_first = program.run, program._call, program._watched[0].way
    kinds, takes_turns, most = len(donated_kinds), program._takes_turns, program._most
    turns = TURNS
    recorder, clock, subject = RECORDER, monotonic_ns, program.subject
    next_run = subject.run

    def run(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if kwargs or len(donated_kinds) != kinds:
            return general(args, kwargs)
        first: Any = args
        for look_up in way_to_first:
            first = look_up(first)
        kind = type(first)
        if not is_concrete(kind) or first.is_deleted():
            return general(args, kwargs)
        with lock:
            if takes_turns and (first is not turns.output or turns.in_a_row >= most):
                turns.settle()
            entry = [subject, clock(), 0, None, None]
            recorder.append(entry)
            _, result, _ = call(*args)
            entry[3] = next_run()
            entry[2] = clock()
            if takes_turns:
                try:
                    output = result
                    for look_up in program._way_to_output:
                        output = look_up(output)
                except NOT_THERE:  # A trace whose result has another structure.
                    output = None
                if type(output) is not kind and not is_concrete(type(output)):
                    output = program._find_output(result)
                turns.output = output
                turns.in_a_row += 1
            if recorder.wait is not None:
                recorder.wait(entry, result)
        return result

    return run
