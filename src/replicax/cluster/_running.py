"""Starting programs that all workers run together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ._agreement import agree
from ._order import NUMBER_BITS, ORDER, VARIANT_BITS
from ._runtime import runtime

_MOST_UNPACKED = 4096
_SHAPES = (1 << (VARIANT_BITS - NUMBER_BITS)) - 1


def running(program: Callable[..., Any], entry: Callable[..., int] | int) -> Callable[..., Any]:
    """Returns a function that runs a program under the guard, and enters it in the order.

    Another program than the last one, or other shapes, is started after the workers have met: an
    engine that gets different programs from them adds up what does not belong together, or aborts
    the process.

    What it does beside the program is written out, because each Python call costs as much as all
    of it, and it is done in each step.

    Args:
        program: Starts the program.
        entry: The entry of the order; a function of the program's arguments if it depends on them.
    """
    worker = runtime()
    order, ran = ORDER, ORDER.ran
    is_fixed = isinstance(entry, int)
    if worker is None:
        return _unwatched(program, entry)
    guard = worker.main_guard
    thread, main = threading.get_ident, threading.main_thread().ident

    def run(*args: Any) -> Any:
        number: Any = entry if is_fixed else entry(*args)  # type: ignore[operator] # else it calls
        if number >> NUMBER_BITS != order.started:
            _change(number)
        if thread() != main:
            with worker.guard():
                order.entering = number
                try:
                    result = program(*args)
                finally:
                    order.entering = 0
                ran.append(number)
            return result
        guard.count += 1
        guard.depth += 1
        try:
            if guard.has_failed:
                worker.check()
            order.entering = number
            result = program(*args)
        except Exception as error:
            worker.after_wait(error)
            raise
        finally:
            order.entering = 0
            guard.depth -= 1
        ran.append(number)
        return result

    return run


def _change(entry: int) -> None:
    """Meets the other workers, who must be about to start the same program."""
    program, shapes = entry >> VARIANT_BITS, entry >> NUMBER_BITS & _SHAPES
    agree(
        f"starting {ORDER.name_of(entry)}",
        {"program": f"{program:x}", "shapes": f"{shapes:x}"},
        why="All workers must run the same programs, with arrays of the same shapes, in the same "
        "order. Nothing was run.",
        fix="Run the same steps on every worker; rows of its own belong in a distributed batch.",
    )
    ORDER.started = entry >> NUMBER_BITS


def _unwatched(program: Callable[..., Any], entry: Callable[..., int] | int) -> Callable[..., Any]:
    """The same where nobody watches, and only meetings compare."""

    def run(*args: Any) -> Any:
        number = entry if isinstance(entry, int) else entry(*args)
        if number >> NUMBER_BITS != ORDER.started:
            _change(number)
        result = program(*args)
        ORDER.ran.append(number)
        if len(ORDER.ran) > _MOST_UNPACKED:
            ORDER.state()
        return result

    return run
