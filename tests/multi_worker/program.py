"""What each of two workers does: every check once, in this order, with what came of it as JSON.

Starting processes takes longer than the checks, so they share a job. A check that fails on one
worker may leave the other at a meeting; then both end there, and the checks after it have no
result.
"""

from __future__ import annotations

import copy
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from parity_one_device import models

import replicax as rx
from replicax.cluster import LastCall, gather
from replicax.cluster._gather import _STORE
from replicax.cluster._last_call import _StoreLink

CHECKS: dict[str, Callable[..., Any]] = {}
TOLERANCE = 1e-6


def check(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Run the function in each worker. What it returns must be equal on both."""
    CHECKS[fn.__name__] = fn
    return fn


class Job:
    """What the checks share.

    Attributes:
        strategy: The strategy over both workers.
        rank: Number of this worker.
        folder: A folder of both workers.
    """

    def __init__(self, folder: Path) -> None:
        self.strategy = rx.MultiWorkerMirroredStrategy()
        self.rank = jax.process_index()
        self.folder = folder
        self.ids = self.strategy.distribute_values_from_function(
            lambda context: jnp.full(2, context.replica_id_in_sync_group, jnp.float32)
        )

    def variable(self, value: Any, **options: Any) -> Any:
        with self.strategy.scope():
            return rx.Variable(value, **options)

    def step(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled step of a replica function."""
        return rx.function(lambda *args: self.strategy.run(fn, args=args))


def numbers(value: Any) -> list[Any]:
    """What is written into the results: the value on the host."""
    return np.asarray(value).tolist()


def mine(job: Job, everyone: list[Any]) -> list[Any]:
    """The part of this worker's replicas."""
    return everyone[2 * job.rank : 2 * job.rank + 2]


def raised(kind: type[Exception], fn: Callable[[], Any]) -> str:
    """The message of an error that is raised on both workers."""
    with pytest.raises(kind) as caught:
        fn()
    return str(caught.value)


# --- the strategy ----------------------------------------------------------------------------


@check
def facts(job: Job) -> Any:
    strategy = job.strategy
    assert strategy.is_chief == (job.rank == 0)
    assert strategy.worker_count == 2
    assert (strategy.cluster_resolver.rank, strategy.cluster_resolver.world_size) == (job.rank, 2)
    assert strategy.num_replicas_in_sync == 4
    assert strategy.replica_mesh.local_replicas == tuple(mine(job, [0, 1, 2, 3]))
    assert all(device.process_index == job.rank for device in strategy.replica_mesh.local_devices)
    assert len(set(strategy.extended.worker_devices)) == 4
    return strategy.name


@check
def messages_in_the_store_of_jax(job: Job) -> Any:
    """What workers use that were started by something else."""
    for number in range(3):
        assert _STORE.gather("test", [number, job.rank], 60.0) == [[number, 0], [number, 1]]
    if job.rank == 0:
        with pytest.raises(rx.errors.CollectiveTimeoutError) as caught:
            _STORE.gather("alone", 0, 0.2)
        assert "Worker 1 did not come to the meeting 'alone'" in str(caught.value)
    return gather("test", 7)


# --- values between steps --------------------------------------------------------------------


@check
def per_replica_values(job: Job) -> Any:
    strategy, ids = job.strategy, job.ids
    assert [numbers(x) for x in ids.values] == mine(job, [[i, i] for i in range(4)])
    assert strategy.local_results(ids)[0].devices() == {strategy.replica_mesh.local_devices[0]}
    assert numbers(strategy.reduce("sum", ids, axis=None)) == [6, 6]
    assert float(strategy.reduce("mean", ids, axis=0)) == 1.5
    assert float(strategy.reduce(rx.ReduceOp.MAX, ids, axis=0)) == 3
    joined = strategy.gather({"x": ids}, axis=0)["x"]
    assert numbers(joined) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert strategy.local_results(joined)[1].devices() == {strategy.replica_mesh.local_devices[1]}
    return numbers(joined)


@check
def values_of_different_lengths(job: Job) -> Any:
    strategy = job.strategy
    lengths = mine(job, [0, 1, 2, 5])
    ragged = rx.PerReplica([jnp.arange(n, dtype=jnp.bfloat16) for n in lengths])
    assert float(strategy.reduce("sum", ragged, axis=0)) == 1 + 10
    assert float(strategy.reduce("mean", ragged, axis=0)) == 11 / 8
    return numbers(strategy.gather(ragged, axis=0).astype(jnp.float32))


@check
def random_keys_are_gathered(job: Job) -> Any:
    keys = rx.PerReplica([jax.random.key(i)[None] for i in mine(job, [0, 1, 2, 3])])
    return numbers(jax.random.key_data(job.strategy.gather(keys, axis=0)))


@check
def sparse_rows_are_joined(job: Job) -> Any:
    ids = mine(job, [0, 1, 2, 3])
    slices = rx.IndexedSlices(
        rx.PerReplica([jnp.full((1, 2), float(i)) for i in ids]),
        rx.PerReplica([jnp.array([i % 2]) for i in ids]),
        dense_shape=(2, 2),
    )
    joined = job.strategy.reduce("sum", slices, axis=None)
    return numbers(joined.to_dense(2))


@check
def workers_in_different_calls_are_told(job: Job) -> Any:
    strategy, ids = job.strategy, job.ids
    text = raised(
        rx.errors.CollectiveMismatchError,
        lambda: strategy.gather(ids, axis=0) if job.rank else strategy.reduce("sum", ids, axis=0),
    )
    assert "strategy.reduce" in text
    assert "strategy.gather" in text
    other = raised(
        rx.errors.CollectiveMismatchError,
        lambda: strategy.reduce("mean" if job.rank else "sum", ids, axis=None),
    )
    assert "MEAN" in other
    same = raised(
        rx.errors.CollectiveMismatchError,
        lambda: strategy.reduce("mean", jnp.float32(job.rank), axis=None),
    )
    return [text, other, same]


# --- variables between steps -----------------------------------------------------------------


@check
def a_variable_starts_from_the_value_of_worker_0(job: Job) -> Any:
    v = job.variable(np.full(3, 5.0 + job.rank, np.float32), name="v")
    assert numbers(v.value) == [5, 5, 5]
    assert v.value.is_fully_addressable
    assert len(v.values) == 2
    key = job.variable(jax.random.key(7 + job.rank), name="key")
    return [numbers(v), numbers(jax.random.key_data(key.value))]


@check
def workers_that_create_different_variables_are_told(job: Job) -> Any:
    return raised(
        rx.errors.CollectiveMismatchError,
        lambda: job.variable(np.zeros(2 + job.rank, np.float32), name="v"),
    )


@check
def writes_across_replicas(job: Job) -> Any:
    v = job.variable([1.0, 2.0, 3.0], name="v")
    before = v.value
    v.assign_add([1.0, 1.0, 1.0])
    v.at[0].set(9.0)
    v.scatter_add(rx.IndexedSlices(jnp.array([1.0]), jnp.array([2])))
    assert numbers(before) == [1, 2, 3]
    text = raised(rx.errors.VaryingWriteError, lambda: v.assign(np.full(3, job.rank, np.float32)))
    raised(rx.errors.VaryingWriteError, lambda: v.at[job.rank].set(0.0))
    twin = copy.deepcopy(v)
    v.assign_sub(twin.value)
    assert numbers(v) == [0, 0, 0]
    return [numbers(twin), text]


@check
def variables_with_a_value_of_each_replica(job: Job) -> Any:
    found = []
    for aggregation in ("sum", "mean", "only_first_replica"):
        v = job.variable(0.0, synchronization="on_read", aggregation=aggregation, name="v")
        v.assign(rx.PerReplica(mine(job, [4.0, 1.0, 2.0, 5.0])))
        assert [float(x) for x in v.values] == mine(job, [4.0, 1.0, 2.0, 5.0])
        found.append(float(v))
    assert found == [12, 3, 4]
    count = job.variable(0, synchronization="on_read", aggregation="sum", name="count")
    count.assign(10)
    assert [int(x) for x in job.strategy.local_results(count)] == mine(job, [3, 3, 2, 2])
    free = job.variable([0.0], synchronization="on_read", name="free")
    free.assign(rx.PerReplica([jnp.array([x]) for x in mine(job, [1.0, 2.0, 3.0, 4.0])]))
    free.assign_add([1.0])
    return [found, int(count), numbers(job.strategy.gather(free, axis=0))]


@check
def copies_are_compared_over_workers(job: Job) -> Any:
    v = job.variable([1.0, 2.0], name="v")
    rx.check_replicas_equal({"v": v, "local": jnp.ones(2)})
    parts = [jnp.full(2, 1.0 + (i == 3)) for i in mine(job, [0, 1, 2, 3])]
    broken = job.strategy.replica_mesh.from_components(parts)
    text = raised(rx.errors.ReplicaDivergenceError, lambda: rx.check_replicas_equal([v, broken]))
    assert "1 of 2 mirrored arrays" in text
    assert "float32[2]" in text
    return text.splitlines()[0]


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
            "second": ctx.broadcast(x, source=2),
            "merged": merged,
            "key": jax.random.key_data(ctx.rng(jax.random.key(3))),
        }

    result = job.step(replica_fn)(job.ids)
    assert numbers(result["sum"]) == [6, 6]
    assert numbers(result["max"]) == [3, 3]
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
    for _ in range(3):
        held = w.value  # What was read stays valid, although the step gives its state away.
        result = step(job.ids, 0.5)
    assert numbers(held) == [-0.5, -0.5]
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
def programs_that_differ_are_told_before_they_run(job: Job) -> Any:
    told = {}
    for name, (fn, word) in replica_functions(job.rank).items():
        step = job.step(fn)
        for _ in range(2):  # The second time, too.
            text = raised(rx.errors.CollectiveMismatchError, lambda step=step: step(job.ids))
            assert word in text, f"{name}: {text}"
        told[name] = text
    assert "program.py:" in told["op"]
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
    assert "program.py:" in told["op"]

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


# --- input -----------------------------------------------------------------------------------


def steps_of(job: Job, dataset: Any) -> list[Any]:
    """For each step the rows of all replicas, and whether the batch is padded."""
    found = []
    for batch in dataset:
        rows = [x.tolist() for x in job.strategy.local_results(batch)]
        everyone = [*rows, [], []] if job.rank == 0 else [[], [], *rows]
        found.append((everyone, batch.rows is not None))
    return found


@check
def one_dataset_is_shared_out(job: Job) -> Any:
    options = rx.InputOptions(global_batch_size=8)
    dataset = job.strategy.distribute_dataset(np.arange(10), options)
    assert len(dataset) == 2
    found = steps_of(job, dataset)
    assert found[0][0] == [x if r // 2 == job.rank else [] for r, x in enumerate(_pairs())]
    assert [is_padded for _, is_padded in found] == [False, True]
    assert dataset.plan.num_pipelines == 2

    rows = rx.data.from_arrays(np.arange(12)).shuffle(seed=3).batch(5)
    batches = iter(job.strategy.distribute_dataset(rows))
    next(batches)
    state = batches.get_state()
    rest = steps_of(job, batches)
    resumed = iter(job.strategy.distribute_dataset(rows))
    resumed.set_state(state)
    assert steps_of(job, resumed) == rest
    return state


def _pairs() -> list[list[int]]:
    return [[0, 1], [2, 3], [4, 5], [6, 7]]


@check
def an_iterator_of_unknown_length(job: Job) -> Any:
    batches = (np.arange(4.0) + i for i in range(3))
    found = steps_of(job, job.strategy.distribute_dataset(batches))
    # Here worker 1 has fewer elements: nobody waits for it, and no row is lost.
    fewer = (np.arange(4.0) + i for i in range(3 - job.rank))
    uneven = steps_of(job, job.strategy.distribute_dataset(fewer))
    return [len(found), len(uneven), [is_padded for _, is_padded in uneven]]


@check
def workers_with_datasets_of_their_own(job: Job) -> Any:
    """Worker 1 has twice the batches; worker 0 goes on without rows."""
    own = [np.arange(4.0) + 10 * job.rank] * (1 + job.rank)
    dataset = job.strategy.distribute_dataset(own, rx.InputOptions(policy="off"))
    assert len(dataset) == 2
    found = steps_of(job, dataset)
    assert found[1] == ([[], [], *mine(job, [[], [], [10, 11], [12, 13]])], True) or job.rank == 0

    @rx.function
    def mean(batch: Any) -> Any:
        return job.strategy.run(lambda x: rx.get_replica_context().global_mean(x), args=(batch,))

    return [len(found), [float(mean(batch)) for batch in dataset]]


@check
def a_worker_without_any_rows(job: Job) -> Any:
    def batches(context: rx.InputContext) -> Any:
        assert context.num_input_pipelines == 2
        count = 3 * context.input_pipeline_id
        return [{"x": np.full((2, 3), i, np.float32), "y": np.ones(2)} for i in range(count)]

    dataset = job.strategy.distribute_datasets_from_function(batches)

    @rx.function
    def total(batch: Any) -> Any:
        def replica_fn(batch: Any) -> Any:
            return rx.get_replica_context().global_sum(batch["x"])

        return job.strategy.run(replica_fn, args=(batch,))

    sums = [numbers(total(batch)) for batch in dataset]
    dropped = job.strategy.distribute_datasets_from_function(
        batches, rx.InputOptions(remainder="drop")
    )
    assert list(dropped) == []
    text = raised(
        rx.errors.InvalidArgumentError,
        lambda: list(
            job.strategy.distribute_datasets_from_function(
                batches, rx.InputOptions(remainder="error")
            )
        ),
    )
    return [len(dataset), sums, text]


@check
def different_datasets_are_refused(job: Job) -> Any:
    rows = rx.data.from_arrays(np.arange(8))
    seeds = raised(
        rx.errors.CollectiveMismatchError,
        lambda: job.strategy.distribute_dataset(rows.shuffle(seed=job.rank).batch(4)),
    )
    other = raised(
        rx.errors.CollectiveMismatchError,
        lambda: job.strategy.distribute_dataset([np.arange(4.0) + job.rank]),
    )
    trees = raised(
        rx.errors.StructureMismatchError,
        lambda: list(
            job.strategy.distribute_datasets_from_function(
                lambda context: [{"ab"[context.input_pipeline_id]: np.ones(2)}]
            )
        ),
    )
    return [seeds, other, trees]


# --- checkpoints -----------------------------------------------------------------------------


@check
def a_checkpoint_of_all_workers(job: Job) -> Any:
    w = job.variable([1.0, 2.0], name="w")
    total = job.variable(0.0, synchronization="on_read", aggregation="sum", name="total")
    total.assign(rx.PerReplica(mine(job, [1.0, 2.0, 3.0, 4.0])))
    free = job.variable(0, synchronization="on_read", name="free")
    free.assign(rx.PerReplica(mine(job, [5, 6, 7, 8])))
    state = job.step(lambda x: rx.get_replica_context().all_reduce("sum", x))(job.ids)
    objects = {"w": w, "total": total, "free": free, "state": {"sum": state, "epoch": 3}}
    checkpoint = rx.checkpoint.Checkpoint(**objects)
    checkpoint.save(job.folder / "all")
    checkpoint.save(job.folder / "all")
    w.assign([0.0, 0.0])
    total.assign(0.0)
    free.assign(0)
    checkpoint.restore(job.folder / "all").assert_consumed()
    assert [int(x) for x in free.values] == mine(job, [5, 6, 7, 8])
    assert numbers(checkpoint.state["sum"]) == [6, 6]
    late = rx.checkpoint.Checkpoint(model=[])
    waits = rx.checkpoint.Checkpoint(w=w)
    waits.save(job.folder / "late")
    del late
    return [numbers(w), float(total)]


@check
def a_checkpoint_that_fails_fails_on_all(job: Job) -> Any:
    checkpoint = rx.checkpoint.Checkpoint(n=1)
    missing = raised(rx.errors.NotFoundError, lambda: checkpoint.restore(job.folder / "nothing"))
    taken = raised(rx.errors.AlreadyExistsError, lambda: checkpoint.save(Path(__file__)))
    other = rx.checkpoint.Checkpoint(**{f"n{job.rank}": 1})
    raised(rx.errors.CollectiveMismatchError, lambda: other.save(job.folder / "other"))
    return [missing.splitlines()[0], "exists and is no checkpoint" in taken]


@check
def i2_a_checkpoint_that_one_worker_saves_is_an_error_on_all(job: Job) -> Any:
    checkpoint = rx.checkpoint.Checkpoint(n=1)
    save = lambda: checkpoint.save(job.folder / "lone")  # noqa: E731
    reduce = lambda: job.strategy.reduce("sum", job.ids, axis=None)  # noqa: E731
    text = raised(rx.errors.CollectiveMismatchError, reduce if job.rank else save)
    assert "Checkpoint.save" in text
    assert "strategy.reduce" in text
    save()
    return rx.checkpoint.commits(job.folder / "lone")


@check
def all_workers_stop_before_the_same_call(job: Job) -> Any:
    """Over the control channel, and over what workers use that something else has started."""
    found = []
    for link in (None, _StoreLink("stops/store")):
        calls = LastCall("stops", link)
        for _ in range(2 + 3 * job.rank):
            assert not calls.stops_here()
        gather("both have begun", None)
        if job.rank == 0:
            calls.ask()
        while not calls.stops_here():
            time.sleep(0.001)
        assert calls.is_asked
        calls.close()
        found.append(calls.count)
    assert min(found) >= 5
    return found


@check
def nobody_stops_once_a_worker_has_made_its_last_call(job: Job) -> Any:
    for link in (None, _StoreLink("late/store")):
        calls = LastCall("late", link)
        if job.rank == 1:
            calls.close()
        gather("worker 1 is done", None)
        if job.rank == 0:
            calls.ask()
            while not calls._is_known.is_set():
                assert not calls.stops_here()
                time.sleep(0.001)
            assert not calls.stops_here()
            calls.close()
    return True


# -- optimizers, precision and modules ----------------------------------------


@check
def accumulated_scaled_and_clipped_steps(job: Job) -> Any:
    """Adam on micro-batches; an overflow on the last replica of all makes every worker skip."""
    optax = pytest.importorskip("optax")
    with job.strategy.scope():
        w = rx.Variable(np.float32([1.0, -1.0]), name="w")
        optimizer = rx.Optimizer(optax.adam(0.1), [w])
        scale = rx.precision.LossScale(8.0)

    @rx.function
    def step(batch: Any) -> Any:
        def replica_step(x: Any) -> Any:
            ctx = rx.get_replica_context()
            loss, gradients = rx.accumulate(lambda x: scale.multiply((x @ w.value) ** 2), x, 2, [w])
            gradients, norm = rx.clip_by_global_norm(gradients, 100.0)
            return loss, norm, scale.apply_gradients(optimizer, gradients), ctx.global_sum(x)

        return job.strategy.run(replica_step, args=(batch,))

    x = np.arange(14, dtype=np.float32).reshape(7, 2) / 14
    options = rx.InputOptions(policy="data")
    seen = []
    for rows in (x, np.where(np.arange(7)[:, None] == 6, np.inf, x).astype(np.float32), x):
        (batch,) = job.strategy.distribute_dataset([rows], options)
        loss, norm, applied, _ = step(batch)
        seen.append([float(loss), float(norm), bool(applied), float(scale.value)])

    start = jnp.float32([1.0, -1.0])
    tx, params = optax.adam(0.1), start
    state = tx.init(params)
    for _ in range(2):
        gradients = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(params)
        updates, state = tx.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(np.asarray(w), params, atol=1e-5)
    assert [one[2:] for one in seen] == [[True, 8.0], [False, 4.0], [True, 4.0]]
    assert seen[0][0] == pytest.approx(8 * np.mean((x @ [1.0, -1.0]) ** 2), rel=1e-5)
    rx.check_replicas_equal([w, scale.scale])
    return [seen[0], seen[2]]


@check
def a_module_of_flax_trains_as_on_one_device(job: Job) -> Any:
    optax = pytest.importorskip("optax")
    nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed")
    x = np.arange(28, dtype=np.float32).reshape(7, 4) / 28

    def made(seed: int) -> Any:
        module = nnx.Linear(4, 1, rngs=nnx.Rngs(seed))
        return module, nnx.Optimizer(module, optax.sgd(0.1), wrt=nnx.Param)

    with job.strategy.scope():  # Worker 1 starts from the weights of worker 0.
        module, optimizer = rx.nnx.adopt(*made(job.rank))

    def replica_step(x: Any) -> Any:
        ctx = rx.get_replica_context()
        loss, gradients = nnx.value_and_grad(
            lambda module: ctx.global_mean((module(x)[:, 0] - 1.0) ** 2)
        )(module)
        optimizer.update(module, ctx.all_reduce("mean", gradients))
        return loss

    step = rx.function(lambda batch: job.strategy.run(replica_step, args=(batch,)))
    options = rx.InputOptions(policy="data")
    losses = [float(step(b)) for b in job.strategy.distribute_dataset([x, x], options)]

    alone, its_optimizer = made(0)
    by_flax = nnx.jit(nnx.value_and_grad(lambda m: jnp.mean((m(x)[:, 0] - 1.0) ** 2)))
    for loss in losses:
        expected, gradients = by_flax(alone)
        assert loss == pytest.approx(float(expected), abs=TOLERANCE)
        its_optimizer.update(alone, gradients)
    kernel = np.asarray(module.kernel[...])
    module.bias[...] = jnp.full(1, float(job.rank))
    (batch,) = job.strategy.distribute_dataset([x])
    assert "on all workers" in raised(rx.errors.ContextError, lambda: step(batch))
    with job.strategy.scope():
        rx.nnx.adopt(module)
    assert np.asarray(module.bias[...]).tolist() == [0.0]
    step(batch)
    np.testing.assert_allclose(kernel, np.asarray(alone.kernel[...]), atol=1e-5)
    return numbers(kernel)


def main() -> None:
    results_folder, folder = map(Path, sys.argv[1:3])
    job = Job(folder)
    results = {}
    for name in sys.argv[3:] or CHECKS:
        started = time.monotonic()
        try:
            results[name] = {"result": CHECKS[name](job)}
        except pytest.skip.Exception as skipped:
            results[name] = {"skipped": str(skipped)}
        except BaseException:  # noqa: BLE001 - told in the results
            results[name] = {"error": traceback.format_exc()}
            if not sys.argv[3:]:
                break
        finally:
            results[name]["seconds"] = round(time.monotonic() - started, 2)
            path = results_folder / f"worker{job.rank}.json"
            new = path.with_suffix(".new")
            new.write_text(json.dumps(results), encoding="utf-8")
            new.replace(path)  # Whoever reads it sees it whole.


if __name__ == "__main__":
    main()
