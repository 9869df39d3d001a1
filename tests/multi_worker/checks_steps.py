"""Compiled steps, training, and the eager runner."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import TOLERANCE, Job, check, mine, numbers, raised
from parity_one_device import models

import replicax as rx

BFLOAT16 = rx.CommunicationOptions(wire_dtype="bfloat16")
ROUNDED = [1032.0, 1032.0]
"""257, 258, 259 and 260 as bfloat16, whose last digit there is a 2: 256 + 258 + 260 + 260; and 1034
as bfloat16, whose last digit there is an 8."""

# --- compiled steps --------------------------------------------------------------------------


@check
def collectives_of_a_compiled_step(job: Job) -> Any:
    def replica_fn(x: Any) -> Any:
        ctx = rx.get_replica_context()
        me = ctx.replica_id_in_sync_group
        merged = ctx.merge_call(lambda s, v: s.reduce("mean", v, axis=0), args=(x,))
        return {
            "sum": ctx.all_reduce("sum", x),
            "max": ctx.all_reduce(rx.ReduceOp.MAX, x),
            "joined": ctx.all_gather(x[:1], axis=0),
            "part": ctx.reduce_scatter("sum", jnp.arange(4.0) + me),
            "half": ctx.all_reduce("sum", 257.0 + x, BFLOAT16),
            "second": ctx.broadcast(x, source=2),
            "merged": merged,
            "key": jax.random.key_data(ctx.rng(jax.random.key(3))),
        }

    result = job.step(replica_fn)(job.ids)
    assert numbers(result["sum"]) == [6, 6]
    assert numbers(result["max"]) == [3, 3]
    assert numbers(result["half"]) == ROUNDED
    assert numbers(result["joined"]) == [0, 1, 2, 3]
    assert numbers(result["second"]) == [2, 2]
    assert float(result["merged"]) == 1.5
    parts = job.strategy.local_results(result["part"])
    assert [numbers(part) for part in parts] == mine(job, [[6], [10], [14], [18]])
    keys = [jax.random.fold_in(jax.random.key(3), i) for i in mine(job, [0, 1, 2, 3])]
    found = job.strategy.local_results(result["key"])
    assert [numbers(x) for x in found] == [numbers(jax.random.key_data(key)) for key in keys]
    return numbers(job.strategy.gather(result["part"], axis=0))


@check
def larger_leaves_are_packed_between_processes(job: Job) -> Any:
    """More than inside a process; whole numbers have the same sum in any order."""
    options = rx.CommunicationOptions(bytes_per_pack=1)

    def replica_fn(x: Any) -> Any:
        ctx = rx.get_replica_context()
        leaves = [x[0] * jnp.ones((300, 300)), x, x[0] * jnp.ones((1024, 1024))]
        return ctx.all_reduce("sum", leaves), ctx.all_reduce("sum", leaves, options)

    step = job.step(replica_fn)
    packed, alone = step(job.ids)
    for one, other in zip(packed, alone, strict=True):
        np.testing.assert_array_equal(one, other)
    packs = [entry.packs for entry in step.requested_collectives(job.ids)]
    assert packs == [((1, 0), (2,)), ((1,), (0,), (2,))]  # `x` needs no computing.
    return packs


@check
def a_step_is_explained_by_one_worker_alone(job: Job) -> Any:
    @rx.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            return rx.get_replica_context().all_reduce("mean", x)

        return job.strategy.run(replica_fn, args=(x,))

    compiled = sum(each.bytes for each in step.collectives(job.ids))
    if job.rank == 0:
        [program] = rx.explain(step, job.ids).programs
        assert program.bytes_sent == program.bytes_compiled == compiled > 0
        assert rx.explain(step, job.ids, replicas=64).replicas == 64
    return numbers(step(job.ids))


@check
def variables_of_all_kinds_in_a_compiled_step(job: Job) -> Any:
    w = job.variable([1.0, 1.0], name="w")
    mean = job.variable(0.0, aggregation="mean", name="mean")
    total = job.variable(0.0, synchronization="on_read", aggregation="sum", name="total")
    made: list[Any] = []

    def replica_fn(x: Any, rate: Any) -> Any:
        ctx = rx.get_replica_context()
        if not made:
            made.append(rx.Variable(0.0, synchronization="on_read", aggregation="sum"))
        made[0].assign_add(1.0)
        w.assign_sub(rate * ctx.all_reduce("mean", x))
        mean.assign_add(x[0])
        total.assign_add(jnp.sum(x))
        return x[0] * w.value[0]

    step = job.step(replica_fn)
    for _ in range(2):
        held = w.value  # What was read stays valid, although the step gives its state away.
        step(job.ids, 0.5)
    jax.config.update("jax_no_tracing", True)  # A steady step does not pass through jax's Python.
    try:
        result = step(job.ids, 0.5)
    finally:
        jax.config.update("jax_no_tracing", False)
    assert numbers(held) == [0.25, 0.25]
    assert numbers(w) == [-1.25, -1.25]
    assert [float(x) for x in job.strategy.local_results(result)] == mine(
        job, [-0.0, -1.25, -2.5, -3.75]
    )
    return [numbers(w), float(mean), float(total), float(made[0])]


@check
def arguments_of_a_step(job: Job) -> Any:
    step = rx.function(
        lambda state, x: (state + job.strategy.reduce("sum", x, axis=None), {"x": x}),
        donate="state",
    )
    state = jnp.zeros(2)
    for _ in range(2):
        state, rest = step(state, job.ids)
    assert numbers(state) == [12, 12]
    with job.strategy.scope():  # Components of this worker alone, joined with those of the other.
        state, rest = step(state, rx.PerReplica([jnp.ones(2), jnp.ones(2)]))
    assert numbers(state) == [16, 16]
    assert len(job.strategy.local_results(rest["x"])) == 2
    raised(
        rx.errors.InvalidArgumentError,
        lambda: step(state, rx.PerReplica([jnp.ones(2), jnp.ones(2)])),
    )
    other = job.step(lambda x, rate: rate * x)
    if job.rank == 0:  # Looking at a step is no collective.
        assert other.collectives(job.ids, 0.5) == ()
    text = raised(rx.errors.CollectiveMismatchError, lambda: other(job.ids, float(job.rank)))
    assert "`args[1]`" in text
    return text


# --- training --------------------------------------------------------------------------------

# Of 8 rows, each replica has 2; of 5, the third has 1 and the last has none.
BATCHES = models.cut_sizes([8, 5, 8, 5, 8])


def trained(trainer: Any, optimizer: str, batches: Any = BATCHES) -> Any:
    weights, losses = trainer.train(batches)
    one_device, one_device_losses = models.train_on_one_device(optimizer, batches)
    assert models.largest_difference(weights, one_device) <= TOLERANCE
    assert losses == pytest.approx(one_device_losses, rel=TOLERANCE)
    return jax.tree.map(numbers, weights)


@check
def training_with_variables_and_sgd_equals_one_device(job: Job) -> Any:
    return trained(models.InPlace("sgd", job.strategy, compiled=True), "sgd")


@check
def training_with_variables_and_adam_equals_one_device(job: Job) -> Any:
    trainer = models.InPlace("adam", job.strategy, compiled=True)
    weights = trained(trainer, "adam")
    rx.checkpoint.Checkpoint(weights=trainer.variables[0]).save(job.folder / "adam")
    return weights


@check
def functional_training_with_adam_and_donated_state_equals_one_device(job: Job) -> Any:
    trainer = models.Functional("adam", job.strategy, compiled=True, donate=True)
    return trained(trainer, "adam")


@check
def eager_training_equals_one_device(job: Job) -> Any:
    trainer = models.Functional("sgd", job.strategy, compiled=False)
    return trained(trainer, "sgd", BATCHES[:2])


# --- the eager runner ------------------------------------------------------------------------


@check
def an_eager_run(job: Job) -> Any:
    w = job.variable([1.0, 1.0], name="w")
    mean = job.variable(0.0, aggregation="mean", name="mean")
    own = job.variable(0.0, synchronization="on_read", aggregation="sum", name="own")

    def replica_fn(x: Any) -> Any:
        ctx = rx.get_replica_context()
        assert ctx.replica_id_in_sync_group == int(x[0])
        w.assign_sub(ctx.all_reduce("mean", x))
        mean.assign(x[0])
        own.assign(x[0])
        merged = ctx.merge_call(lambda s, v: s.reduce("sum", v, axis=None), args=(x,))
        part = ctx.reduce_scatter("sum", jnp.arange(4.0) + x[0])
        assert numbers(ctx.all_reduce("sum", 257.0 + x, BFLOAT16)) == ROUNDED
        inner = rx.Variable(2.0, name="inner")
        return merged, x, part, ctx.replica_id_in_sync_group, inner, "word"

    merged, x, part, ids, inner, word = job.strategy.run(replica_fn, args=(job.ids,))
    assert numbers(merged) == [6, 6]
    assert numbers(job.strategy.gather(x, axis=0)) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [numbers(p) for p in part.values] == mine(job, [[6], [10], [14], [18]])
    assert list(ids.values) == mine(job, [0, 1, 2, 3])
    assert (float(inner), word) == (2.0, "word")
    job.strategy.extended.update(mean, lambda v, x: v.assign_add(x), args=(1.0,))
    return [numbers(w), float(mean), float(own)]


@check
def an_eager_run_with_different_lengths(job: Job) -> Any:
    ragged = rx.PerReplica([jnp.arange(float(n)) for n in mine(job, [0, 1, 2, 3])])

    def replica_fn(x: Any) -> Any:
        return rx.get_replica_context().all_gather(x, axis=0), 2 * x

    joined, doubled = job.strategy.run(replica_fn, args=(ragged,))
    assert [x.shape for x in doubled.values] == mine(job, [(0,), (1,), (2,), (3,)])
    return numbers(joined)


@check
def an_eager_run_that_fails_fails_on_all(job: Job) -> Any:
    w = job.variable(0.0, name="w")

    def raises(x: Any) -> Any:
        w.assign(1.0)
        if job.rank == 1:
            raise KeyError("a key of the user's")
        return rx.get_replica_context().all_reduce("sum", x)

    text = raised(KeyError, lambda: job.strategy.run(raises, args=(job.ids,)))
    assert "a key of the user's" in text
    assert ("Worker 1 failed" in text) == (job.rank == 0)
    assert float(w) == 0

    differing = raised(
        rx.errors.VaryingWriteError, lambda: job.strategy.run(lambda: w.assign(float(job.rank)))
    )
    fewer = raised(
        rx.errors.CollectiveMismatchError,
        lambda: job.strategy.run(
            lambda x: rx.get_replica_context().all_reduce("sum", x) if job.rank else x,
            args=(job.ids,),
        ),
    )
    other = raised(
        rx.errors.CollectiveMismatchError,
        lambda: job.strategy.run(
            lambda x: rx.get_replica_context().all_reduce("sum" if job.rank else "mean", x),
            args=(job.ids,),
        ),
    )
    assert float(w) == 0
    return [differing, fewer, other]


@check
def a_host_callback_that_fails_fails_on_all(job: Job) -> Any:
    """In the middle of a program, whose other replicas meet afterwards."""
    w = job.variable(0.0, name="w")
    culprit = [3]

    def host(replica: Any) -> Any:
        if int(replica) == culprit[0]:
            raise KeyError("a key of the host's")
        return np.float32(1)

    def replica_fn() -> Any:
        ctx = rx.get_replica_context()
        me = ctx.replica_id_in_sync_group
        one = jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), me)
        w.assign_add(ctx.all_reduce("sum", one))

    step = job.step(replica_fn)
    for run in (step, lambda: job.strategy.run(replica_fn)):
        text = raised(KeyError, run)
        assert "a key of the host's" in text
        assert ("Worker 1 failed" in text) == (job.rank == 0)
        assert float(w) == 0
    culprit[0] = 4
    step()
    return float(w)


@check
def a_metric_counts_the_rows_of_all_workers_and_starts_anew(job: Job) -> Any:
    with job.strategy.scope():
        metric = rx.metrics.Mean(name="metric")
    options = rx.InputOptions(global_batch_size=8)
    step = job.step(metric.update_state)
    results = []
    for _ in range(2):
        for batch in job.strategy.distribute_dataset(np.arange(10, dtype=np.float32), options):
            step(batch)
        results.append(float(metric.result()))
        metric.reset_state()
    assert results == [4.5, 4.5]
    return float(metric.result())
