"""Datasets of both workers."""

from __future__ import annotations

from typing import Any

import numpy as np
from checks import Job, check, mine, numbers, raised

import replicax as rx

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


@check
def g7_the_work_of_all_replicas_is_known_on_each_worker(job: Job) -> Any:
    options = rx.InputOptions(global_batch_size=4)
    dataset = job.strategy.distribute_dataset(np.arange(10), options)
    found = rx.check_replicas_work(dataset, replicas=4)
    assert [each.rows for each in found.replicas] == [3, 3, 2, 2]
    assert [each.steps for each in found.replicas] == [3, 3, 2, 2]
    return str(found)


@check
def several_steps_in_one_call(job: Job) -> Any:
    """Of a dataset that both share, and of batches of each worker's own, of which one has more."""

    def total(rows: Any) -> Any:
        return rx.get_replica_context().global_sum(rows)

    @rx.function(steps_per_execution=2)
    def step(iterator: Any) -> Any:
        return job.strategy.run(total, args=(iterator.get_next(),))

    rows = np.arange(20, dtype=np.float32)
    dataset = job.strategy.distribute_dataset(rows, rx.InputOptions(global_batch_size=8))
    batches, resumed = iter(dataset), iter(dataset)
    found = [numbers(step(batches))]
    resumed.set_state(batches.get_state())
    found.append(numbers(step(resumed)))
    raised(rx.errors.OutOfRangeError, lambda: step(resumed))
    assert found == [[28, 92], [70]]

    own = [np.arange(4, dtype=np.float32) + 10 * job.rank] * (1 + job.rank)
    dataset = job.strategy.distribute_dataset(own, rx.InputOptions(policy="off"))
    assert numbers(step(iter(dataset))) == [52, 46]
    return found
