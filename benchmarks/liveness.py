"""What liveness and order cost a healthy step of two workers.

    make bench-parts                  # or: python benchmarks/liveness.py --json figures

In one job of two processes, the same compiled program is started bare, and as a step starts it:
under the guard that a failure elsewhere ends, and entered in the order that the master compares.
The contenders take turns; on both workers in the same order, as the program is a collective. What
is compared is the processor time of the thread that starts the steps, which other work on the
machine disturbs least; the time on the clock is shown too. The beacons are sent by another thread.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import jax
import jax.numpy as jnp
from measuring import Comparison, Report, Step, compare, take_turns

import replicax as rx
from replicax.cluster import runtime
from replicax.testing import run_workers

MOST_US = 5.0
SIZE = 2000
"""Floats of the array that is reduced: fewer would be reduced inside of the call that starts it."""

BURSTS = 8
BEACONS = 2000

BARE, WATCHED, FUNCTION = "the program bare", "with guard and order", "the rx.function"
TWO = "two rx.functions in turns"


def contenders() -> dict[str, Step]:
    """The same program in four ways; each keeps an array of its own."""
    strategy = rx.MultiWorkerMirroredStrategy()

    @rx.function(donate="x")
    def step(x: jax.Array) -> Any:
        def replica_step(x: jax.Array) -> Any:
            return rx.get_replica_context().all_reduce("mean", x)

        return strategy.run(replica_step, args=(x,))

    @rx.function(donate="x")
    def other(x: jax.Array) -> Any:  # Programs are equal where their names are, too.
        return step.fn(x)

    starts = [step(other(step(jnp.ones(SIZE)))) for _ in range(4)]
    program: Any = step._latest
    turns = itertools.cycle((step, other))

    def another(x: jax.Array) -> Any:
        run = next(turns)
        return run(x)

    return {
        BARE: _chain(lambda x: program._jitted(x)[1], starts[0]),
        WATCHED: _chain(lambda x: program._call(x)[1], starts[1]),
        FUNCTION: _chain(step, starts[2]),
        TWO: _chain(another, starts[3]),
    }


def _chain(call: Any, x: jax.Array) -> Step:
    """A step that goes on with what the last one returned."""

    def step() -> jax.Array:
        nonlocal x
        x = call(x)
        return x

    return step


def measure(rounds: int) -> dict[str, Any]:
    """The figures of one worker."""
    steps = contenders()
    for step in steps.values():
        step().block_until_ready()
    options: dict[str, Any] = {"rounds": rounds, "bursts": BURSTS}
    processor = take_turns(steps, clock=time.thread_time, wait=False, **options)
    clock = take_turns(steps, clock=time.perf_counter, wait=True, **options)
    worker: Any = runtime()
    began = time.thread_time()
    for _ in range(BEACONS):
        worker.beacon()
    beacon = (time.thread_time() - began) / BEACONS
    return {"processor": processor, "clock": clock, "beacon": beacon}


def compared(seconds: dict[str, list[float]], *, max_more: float | None = None) -> list[Comparison]:
    """The ways beside the bare program, and what it costs to meet where the program changes."""
    return [
        compare(seconds, WATCHED, BARE, "us", max_more=max_more),
        compare(seconds, FUNCTION, BARE, "us"),
        compare(seconds, TWO, FUNCTION, "us"),
    ]


def main() -> None:
    """Run the job, and print what worker 0 has measured."""
    report = Report("liveness", __doc__ or "")
    results = run_workers(
        2, measure, report.rounds, timeout=600, environment={"JAX_PLATFORMS": "cpu"}
    )
    found, _ = [result.unwrap() for result in results]
    report.add("Processor time of a step", compared(found["processor"], max_more=MOST_US))
    report.add("A step on the clock", compared(found["clock"]))
    report.console.print(
        f"A beacon takes {1e6 * found['beacon']:.0f} us, four times a second. "
        f"Load of the machine: {os.getloadavg()[0]:.1f}."
    )
    report.write()


if __name__ == "__main__":
    main()
