"""What each of two workers does: every row of the known pains that leaves them at work, once.

The functions are named after the rows. What they return is looked at in `test_workers_*.py`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "multi_worker"))

import workers_input  # noqa: F401 - the rows of groups A, B and D come first
from checks import Job, check, main, mine, numbers, raised

import replicax as rx
from replicax.cluster import gather


def context() -> Any:
    return rx.get_replica_context()


def mean_of(job: Job) -> Any:
    return job.step(lambda x: context().global_mean(x))


# --- C: weights that differ ----------------------------------------------------------------------


@check
def c8(job: Job) -> Any:
    value = np.random.default_rng().normal(size=3).astype(np.float32)
    found = job.variable(value, name="w")
    rx.check_replicas_equal(found)
    is_mine = bool(np.array_equal(numbers(found), value))
    return [numbers(found), is_mine == (job.rank == 0)]


@check
def c9(job: Job) -> Any:
    units = 2 + job.rank
    return raised(
        rx.errors.CollectiveMismatchError,
        lambda: job.variable(np.zeros((4, units), np.float32), name="dense/kernel"),
    )


# --- E: conditions, gathering --------------------------------------------------------------------


@check
def e3(job: Job) -> Any:
    w = job.variable(0.0, name="w")

    def replica_fn(x: Any) -> None:
        jax.lax.cond(x[0] > 1, lambda: context().all_reduce("sum", x[0]), lambda: x[0])
        if job.rank == 0:
            w.assign_add(1.0)

    compiled = raised(rx.errors.VaryingControlFlowError, lambda: job.step(replica_fn)(job.ids))

    def eager(x: Any) -> None:
        if float(x[0]) > 1:  # on worker 1
            w.assign_add(context().all_reduce("mean", x[0]))

    differing = raised(
        rx.errors.CollectiveMismatchError, lambda: job.strategy.run(eager, args=(job.ids,))
    )

    def everywhere(x: Any) -> None:
        if float(context().all_reduce("sum", x[0])) > 1:
            w.assign_add(1.0)

    job.strategy.run(everywhere, args=(job.ids,))
    return [compiled.splitlines()[0], differing.splitlines()[0], float(w)]


@check
def e7(job: Job) -> Any:
    parts = rx.PerReplica(mine(job, [jnp.array(x, jnp.int32) for x in ([0, 1], [], [2, 3, 4], [])]))
    joined = job.strategy.run(lambda x: context().all_gather(x, axis=0), args=(parts,))
    outside = job.strategy.gather(parts, axis=0)
    return [numbers(joined), numbers(outside)]


@check
def e9(job: Job) -> Any:
    def replica_fn() -> Any:
        return context().all_gather(jnp.arange(10.0)[None], axis=0)

    return list(job.step(replica_fn)().shape)


# --- F: collectives ------------------------------------------------------------------------------


def evaluate(job: Job) -> float:
    options = rx.InputOptions(global_batch_size=4)
    mean = mean_of(job)
    batches = job.strategy.distribute_dataset(np.arange(8.0), options)
    return float(np.mean([float(mean(batch)) for batch in batches]))


@check
def f5(job: Job) -> Any:
    """Worker 0 evaluates, worker 1 goes on."""
    return raised(
        rx.errors.CollectiveMismatchError,
        lambda: evaluate(job) if job.rank == 0 else job.variable(0.0, name="next"),
    )


@check
def f9(job: Job) -> Any:
    """A parameter that one replica alone uses."""
    a, b = job.variable(0.0, name="a"), job.variable(0.0, name="b")

    def replica_fn() -> None:
        me = context().replica_id_in_sync_group

        def loss() -> Any:
            return jax.lax.cond(me == 0, lambda a, b: a + 4 * b, lambda a, _: a, a.value, b.value)

        _, gradients = rx.value_and_grad(loss, (a, b))()
        for variable, gradient in zip((a, b), gradients, strict=True):
            variable.assign_add(context().all_reduce("mean", gradient))

    job.step(replica_fn)()
    return [float(a), float(b)]


LATE_S = 0.5


@check
def f14(job: Job) -> Any:
    """Worker 1 is late at a meeting that is waited for only so long."""
    if job.rank == 1:
        time.sleep(3 * LATE_S)
    found = raised(rx.errors.CollectiveTimeoutError, lambda: gather("a barrier", 0, timeout=LATE_S))
    return [found, gather("the next one", job.rank)]


@check
def f7(job: Job) -> Any:
    """Each operation between steps takes the time-out of the options."""
    options = rx.CommunicationOptions(timeout_seconds=LATE_S)
    strategy = rx.MultiWorkerMirroredStrategy(options=options)
    ids = strategy.distribute_values_from_function(
        lambda context: jnp.full(1, context.replica_id_in_sync_group, jnp.float32)
    )

    def replica_fn(kind: str) -> Any:
        def call(x: Any) -> Any:
            if kind == "gather":
                return context().all_gather(x, axis=0)
            if kind == "broadcast":
                return context().broadcast(x, source=0)
            return context().all_reduce("sum", x)

        return call

    found = {}
    for kind in ("gather", "broadcast", "reduce"):
        if job.rank == 1:
            time.sleep(3 * LATE_S)
        began = time.monotonic()
        text = raised(
            rx.errors.CollectiveTimeoutError,
            lambda kind=kind: strategy.run(replica_fn(kind), args=(ids,)),
        )
        found[kind] = [text, time.monotonic() - began]
        gather("again together", kind)
    return found


# --- I: checkpoints ------------------------------------------------------------------------------


@check
def i1(job: Job) -> Any:
    w = job.variable(jnp.arange(4.0), name="w")
    checkpoint = rx.checkpoint.Checkpoint(w=w)
    checkpoint.save(job.folder / "i1")
    w.assign(jnp.zeros(4))
    checkpoint.restore(job.folder / "i1").assert_consumed()
    return numbers(w)


@check
def i2(job: Job) -> Any:
    """Only the chief saves a variable whose value is on all workers."""
    total = job.variable(1.0, synchronization="on_read", aggregation="sum", name="total")
    checkpoint = rx.checkpoint.Checkpoint(total=total)

    def chief_only() -> Any:
        if job.strategy.is_chief:
            checkpoint.save(job.folder / "i2")
        return job.strategy.reduce("sum", job.ids, axis=None)

    text = raised(rx.errors.CollectiveMismatchError, chief_only)
    return [text, (job.folder / "i2").exists()]


@check
def i4(job: Job) -> Any:
    """Adam's slots, saved after three steps; what a fourth makes of them."""
    from parity_one_device import models

    trainer = models.InPlace("adam", job.strategy, compiled=True)
    batches = models.cut_sizes([8, 5, 8, 5])

    def train(batches: Any) -> None:
        for batch in job.strategy.distribute_dataset(batches):
            trainer.step(batch)

    train(batches[:3])
    weights, slots = trainer.variables
    rx.checkpoint.Checkpoint(weights=weights, slots=slots).save(job.folder / "i4")
    train(batches[3:])
    return jax.tree.map(numbers, weights)


@check
def i5(job: Job) -> Any:
    """Weights as a step leaves them; their bits."""
    w = job.variable(np.float32([0.1, 0.2, 0.3]), name="w")
    job.step(lambda x: w.assign_add(context().all_reduce("mean", jnp.tile(x, 2)[:3] / 7)))(job.ids)
    rx.checkpoint.Checkpoint(w=w).save(job.folder / "i5")
    return numbers(np.asarray(w.value).view(np.int32))


if __name__ == "__main__":
    main()
