"""The rows of groups A, B and D of the known pains: uneven batches and input over two workers."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from checks import Job, check, numbers, raised

import replicax as rx
from replicax.cluster import gather


def context() -> Any:
    return rx.get_replica_context()


def mean_of(job: Job) -> Any:
    return job.step(lambda x: context().global_mean(x))


def rows_of(job: Job, dataset: Any) -> list[list[int]]:
    """For each step, the rows that the replicas of this worker read."""
    return [
        [int(row) for part in job.strategy.local_results(batch) for row in np.ravel(part)]
        for batch in dataset
    ]


def own_batches(job: Job, counts: tuple[int, int], first: tuple[int, int]) -> Any:
    """Batches of two rows for each worker: another number of them on each."""
    rows = [np.float32([2 * i, 2 * i + 1]) + first[job.rank] for i in range(counts[job.rank])]
    return job.strategy.distribute_dataset(rows, rx.InputOptions(policy="off"))


# --- A, B: uneven batches and their arithmetic ---------------------------------------------------


@check
def a2(job: Job) -> Any:
    """An evaluation whose last batch has one row, so that worker 1 has none."""
    sums = job.variable(np.zeros(3, np.float32), synchronization="on_read", aggregation="sum")

    def replica_fn(x: Any) -> None:
        per_row = jnp.stack([(x - 2 * x) ** 2, jnp.abs(x - 2 * x), jnp.ones_like(x)], axis=1)
        sums.assign_add(context().local_sum(per_row))

    step = job.step(replica_fn)
    rows, options = np.arange(1, 6, dtype=np.float32), rx.InputOptions(global_batch_size=4)
    read = []
    for batch in job.strategy.distribute_dataset(rows, options):
        read.append(sum(len(part) for part in job.strategy.local_results(batch)))
        step(batch)
    squares, distances, count = numbers(sums)
    return [squares / count, distances / count, gather("rows of a2", read)]


@check
def a10(job: Job) -> Any:
    dataset = own_batches(job, (3, 5), (0, 100))
    mean = mean_of(job)
    return [float(mean(batch)) for batch in dataset]


@check
def a13(job: Job) -> Any:
    seen = job.variable(np.zeros(21, np.int32), synchronization="on_read", aggregation="sum")

    def replica_fn(ids: Any) -> None:
        one_hot = (ids[:, None] == jnp.arange(21)).astype(jnp.int32)
        seen.assign_add(context().local_sum(one_hot))

    step = job.step(replica_fn)
    options = rx.InputOptions(global_batch_size=8)
    for batch in job.strategy.distribute_dataset(np.arange(21), options):
        step(batch)
    return numbers(seen)


@check
def a16(job: Job) -> Any:
    dataset = own_batches(job, (2, 1), (0, 10))
    total = job.step(lambda x: context().global_sum(x))
    return [float(total(batch)) for batch in dataset]


@check
def b14(job: Job) -> Any:
    """Three rows for validation on worker 0, one on worker 1."""
    losses = [np.float32([1, 2, 3]), np.float32([10])][job.rank]
    dataset = job.strategy.distribute_dataset([losses], rx.InputOptions(policy="off"))
    mean = mean_of(job)
    return [float(mean(batch)) for batch in dataset]


# --- D: input ------------------------------------------------------------------------------------


@check
def d1(job: Job) -> Any:
    options = rx.InputOptions(global_batch_size=4, policy="data")
    return rows_of(job, job.strategy.distribute_dataset(np.arange(8), options))


@check
def d2(job: Job) -> Any:
    options = rx.InputOptions(global_batch_size=4, policy="off")
    dataset = job.strategy.distribute_dataset(np.arange(8), options)
    counts = np.zeros(8, int)
    for step in gather("d2", rows_of(job, dataset)):
        np.add.at(counts, [row for rows in step for row in rows], 1)
    return [len(dataset), counts.tolist()]


class Notices(logging.Handler):
    """Keeps what replicax says."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def number_files(job: Job, count: int) -> list[Path]:
    """Files with the numbers from 0 to 7, written by worker 0."""
    folder = job.folder / f"{count}_files"
    paths = [folder / f"{i}.txt" for i in range(count)]
    if job.rank == 0:
        folder.mkdir()
        for i, path in enumerate(paths):
            path.write_text("\n".join(str(row) for row in range(i, 8, count)))
    gather("files", count)
    return paths


def read_numbers(path: Any) -> Any:
    return np.loadtxt(path, dtype=np.int32, ndmin=1)


@check
def d3(job: Job) -> Any:
    dataset = rx.data.from_files(number_files(job, 1), read_numbers).batch(4)
    refused = raised(
        rx.errors.InvalidArgumentError,
        lambda: job.strategy.distribute_dataset(dataset, rx.InputOptions(policy="file")),
    )
    logger, notices = logging.getLogger("replicax"), Notices()
    level = logger.level
    logger.addHandler(notices)
    logger.setLevel(logging.WARNING)
    shared = job.strategy.distribute_dataset(dataset)
    logger.removeHandler(notices)
    logger.setLevel(level)
    return [refused, notices.messages, shared.plan.policy.name, rows_of(job, shared)]


@check
def files_by_file(job: Job) -> Any:
    dataset = rx.data.from_files(number_files(job, 4), read_numbers).batch(4)
    found = {}
    for policy in ("file", "auto"):
        shared = job.strategy.distribute_dataset(dataset, rx.InputOptions(policy=policy))
        found[policy] = [shared.plan.policy.name, sorted(itertools.chain(*rows_of(job, shared)))]
    return found


@check
def hint(job: Job) -> Any:
    """The dataset is sharded by the program, where it says so."""
    rows = rx.data.from_arrays(np.arange(8)).shard(rx.data.HINT).batch(4)
    shared = job.strategy.distribute_dataset(rows, rx.InputOptions(policy="hint"))
    return [shared.plan.policy.name, rows_of(job, shared)]


class Reader:
    """A reader of one's own: no list, no generator, no length."""

    def __iter__(self) -> Any:
        yield from (np.arange(start, min(start + 4, 10)) for start in range(0, 10, 4))


@check
def d4(job: Job) -> Any:
    shared = job.strategy.distribute_dataset(Reader())
    return [rows_of(job, shared) for _ in range(2)]


@check
def d5(job: Job) -> Any:
    options = rx.InputOptions(global_batch_size=4)
    dataset = job.strategy.distribute_dataset(np.arange(10), options)
    total = job.step(lambda x: context().global_sum(x))
    return [[float(total(batch)) for batch in dataset] for _ in range(3)]


@check
def d7(job: Job) -> Any:
    rows = rx.data.from_arrays(np.arange(12)).map(lambda row: row, num_parallel=2).batch(4)
    return rows_of(job, job.strategy.distribute_dataset(rows))


@check
def d8(job: Job) -> Any:
    rows = rx.data.from_arrays(np.arange(12)).shuffle(seed=0).batch(4)
    batches = job.strategy.distribute_dataset(rows)
    return [list(itertools.chain(*rows_of(job, batches))) for _ in range(3)]


@check
def d11(job: Job) -> Any:
    generator = (np.arange(start, min(start + 4, 10)) for start in range(0, 10, 4))
    return rows_of(job, job.strategy.distribute_dataset(generator))


@check
def d13(job: Job) -> Any:
    options = rx.InputOptions(global_batch_size=20)
    dataset = job.strategy.distribute_dataset(np.arange(100), options)
    plan = dataset.plan
    promised = [
        sorted(int(row) for replica in plan.rows(step) for row in np.ravel(replica))
        for step in range(plan.num_steps)
    ]
    return [str(plan), promised, [sorted(rows) for rows in rows_of(job, dataset)]]
