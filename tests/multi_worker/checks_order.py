"""The order of what runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from checks import Job, check, mine, numbers, raised

import replicax as rx

# --- the order of what runs ------------------------------------------------------------------


def replica_functions(rank: int) -> dict[str, tuple[Callable[..., Any], str]]:
    """Replica functions that depend on the worker, and what the error of each has to say."""

    def reduced(x: Any, op: str = "sum") -> Any:
        return rx.get_replica_context().all_reduce(op, x)

    def joined(x: Any) -> Any:
        return rx.get_replica_context().all_gather(x, axis=0)

    return {
        "op": (lambda x: reduced(x, "mean" if rank else "sum"), "all_reduce  MEAN"),
        "dtype": (lambda x: reduced(x.astype(jnp.float16 if rank else jnp.int32)), "float16"),
        "shape": (lambda x: reduced(x[: 1 + rank]), "(1,)"),
        "count": (lambda x: reduced(reduced(x) if rank else x), "no more"),
        "rank == 0": (lambda x: reduced(x) if rank == 0 else x, "no more"),
        "order": (lambda x: [f(x).sum() for f in [reduced, joined][:: 1 - 2 * rank]], "all_gather"),
        "constant": (lambda x: reduced(x) * (1.5 + rank), "dense<2.5"),
        "array": (lambda x: reduced(x + np.arange(2.0) * rank), "constant"),
        "arithmetic": (lambda x: jnp.sin(reduced(x)) if rank else reduced(x), "stablehlo.sine"),
    }


@check
def f2_f3_f4_programs_that_differ_are_told_before_they_run(job: Job) -> Any:
    told = {}
    for name, (fn, word) in replica_functions(job.rank).items():
        step = job.step(fn)
        for _ in range(2):  # The second time, too.
            text = raised(rx.errors.CollectiveMismatchError, lambda step=step: step(job.ids))
            assert word in text, f"{name}: {text}"
        told[name] = text
    assert "checks_order.py:" in told["op"]
    assert "float32  (2,)" in told["op"]
    assert job.step(lambda x: rx.get_replica_context().all_reduce("sum", x))(job.ids).sum() == 12

    def one(x: Any) -> Any:
        return job.strategy.run(lambda x: x, args=(x,))

    def other(x: Any) -> Any:
        return job.strategy.run(lambda x: x, args=(x,))

    step = rx.function(other if job.rank else one)
    told["names"] = raised(rx.errors.CollectiveMismatchError, lambda: step(job.ids))
    return told


@check
def collectives_of_an_eager_run_that_differ_are_told(job: Job) -> Any:
    told = {}
    for name, (fn, _) in replica_functions(job.rank).items():
        if name not in {"constant", "array", "arithmetic"}:  # Results may differ.
            told[name] = raised(
                rx.errors.CollectiveMismatchError,
                lambda fn=fn: job.strategy.run(fn, args=(job.ids,)),
            )
    assert "float16" in told["dtype"]
    assert "checks_order.py:" in told["op"]

    def one(x: Any) -> Any:
        return x

    def other(x: Any) -> Any:
        return x

    fn = other if job.rank else one
    told["functions"] = raised(
        rx.errors.CollectiveMismatchError, lambda: job.strategy.run(fn, args=(job.ids,))
    )
    return told


@check
def other_shapes_are_compared_anew(job: Job) -> Any:
    step = rx.function(lambda x: job.strategy.run(lambda x: 2 * x, args=(x,)))
    sums = [float(step(np.ones(size)).sum()) for size in (3, 4, 3, 4)]
    text = raised(rx.errors.CollectiveMismatchError, lambda: step(np.ones(5 + job.rank)))
    assert "shapes of starting" in text
    return [sums, float(step(np.ones(3)).sum())]


@check
def a_new_trace_may_take_longer_on_one_worker(job: Job) -> Any:
    """The master looks four times a second what is being started."""

    def slow(x: Any) -> Any:
        if len(x) == 4 and job.rank:
            time.sleep(1)
        return 2 * x

    step = job.step(slow)
    return [float(step(np.ones(size)).sum()) for size in (3, 4)]


@check
def another_program_is_met_before_it_starts(job: Job) -> Any:
    """JAX would add arrays of different shapes up, or abort the process."""
    step = job.step(lambda x: rx.get_replica_context().all_reduce("sum", x))
    other = job.step(lambda x: 2 * x)
    shapes = [np.ones(2), np.ones(3)]
    for x in shapes:
        step(x)
    other(shapes[0])
    text = raised(rx.errors.CollectiveMismatchError, lambda: step(shapes[job.rank]))
    assert "shapes of starting" in text
    return [text, numbers(step(shapes[1]))]


@check
def programs_in_turns_are_met_for_in_each_turn(job: Job) -> Any:
    step = job.step(lambda x: rx.get_replica_context().all_reduce("sum", x))
    other = job.step(lambda x: 2 * rx.get_replica_context().all_reduce("sum", x))
    for _ in range(3):
        for run, size in [(step, 2), (other, 300)]:
            run(np.ones(size))
    job.step(lambda x: x)(job.ids)
    swapped = [(step, 2), (other, 300)][:: 1 - 2 * job.rank]
    texts = [
        raised(rx.errors.CollectiveMismatchError, lambda run=run, size=size: run(np.ones(size)))
        for run, size in swapped
    ]
    return [texts, numbers(step(np.ones(2)))]


@check
def strict_compares_each_call(job: Job) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPLICAX_CHECK", "strict")
        step = job.step(lambda x, rate: rx.get_replica_context().all_reduce("sum", rate * x))
        same = step(job.ids, np.float32([1.0, 2.0]))
        text = raised(
            rx.errors.CollectiveMismatchError,
            lambda: step(job.ids, np.float32([1.0, 3.0 + job.rank])),
        )
        patch.setenv("REPLICAX_CHECK", "all")
        raised(rx.errors.InvalidArgumentError, lambda: job.step(lambda x: x)(job.ids))
        patch.setenv("REPLICAX_CHECK", "collectives")
        own = job.step(lambda x: x * (1.0 + job.rank))(job.ids)
    assert "a call of" in text
    assert [numbers(x) for x in own.values] == mine(job, [[0, 0], [1, 1], [4, 4], [6, 6]])
    return numbers(same)
