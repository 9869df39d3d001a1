"""What input costs a step, beside loops written by hand and beside other libraries.

    make bench-parts                  # or: python benchmarks/input.py --json figures

All contenders read the same rows, in one process, and end with the global batch on two logical CPU
devices, half of its rows on each. They take turns; see measuring.py. A library that is not
installed is left out, and named.
"""

from __future__ import annotations

import importlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from measuring import BURST, Comparison, Report, Step, compare, cpu_strategy, take_turns
from overhead import all_reduce_mean, dense_layers, jitted, psum_each, row_losses, sgd

import replicax as rx

Rows = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Features f32[N, D] and labels i32[N]."""

BATCH = 256
PASS = 64
"""Batches of one pass."""

MAX_OVERHEAD_US = 60.0
PEERS = ("grain", "tensorflow", "torch")
MLP = [784, 256, 10]
"""Layers whose step takes about 5 ms on two cores."""


def some_rows(features: int) -> Rows:
    """Rows for `PASS` batches; the labels number them, modulo 10 classes."""
    count = BATCH * PASS
    x = np.random.default_rng(0).random((count, features), np.float32)
    return x, np.arange(count, dtype=np.int32) % 10


def batches_of(rows: Rows, order: np.ndarray[Any, Any] | None = None) -> Iterator[Rows]:
    """One pass over the rows by hand: slices, or rows picked in another order."""
    for first in range(0, len(rows[0]), BATCH):
        mine = slice(first, first + BATCH)
        picked = mine if order is None else order[mine]
        yield rows[0][picked], rows[1][picked]


def passes(one_pass: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The batches of pass after pass."""
    while True:
        yield from one_pass()


def halves(strategy: rx.MirroredStrategy) -> NamedSharding:
    """Contiguous rows of a batch `[B, ...]` on each device."""
    return NamedSharding(strategy.replica_mesh.mesh, PartitionSpec("replica"))


# -- one batch: what reading and placing it costs -------------------------------------------------


def loops_by_hand(strategy: rx.MirroredStrategy, rows: Rows) -> dict[str, Iterator[Any]]:
    """Batches on the devices without a library."""
    sharding = halves(strategy)
    placed = [jax.device_put(batch, sharding) for batch in batches_of(rows)]
    rng = np.random.default_rng(0)

    def put(batches: Iterator[Rows]) -> Iterator[Any]:
        return (jax.device_put(batch, sharding) for batch in batches)

    def called_back(array: np.ndarray[Any, Any]) -> jax.Array:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return {
        "placed before": itertools.cycle(placed),
        "slice, device_put": passes(lambda: put(batches_of(rows))),
        "slice, callback": passes(
            lambda: (jax.tree.map(called_back, batch) for batch in batches_of(rows))
        ),
        "shuffle, device_put": passes(lambda: put(batches_of(rows, rng.permutation(len(rows[0]))))),
    }


def distributed(strategy: rx.MirroredStrategy, rows: Rows) -> dict[str, Iterator[Any]]:
    """Batches of distributed iterators, as per-replica values."""
    data = rx.data.from_arrays(*rows)

    def feed(dataset: Any, prefetch: int, size: int | None = None) -> Iterator[Any]:
        options = rx.InputOptions(global_batch_size=size, prefetch=prefetch)
        dataset = strategy.distribute_dataset(dataset, options)
        return passes(lambda: dataset)

    return {
        "arrays, prefetch 0": feed(rows, 0, BATCH),
        "rx.data, prefetch 0": feed(data.batch(BATCH), 0),
        "rx.data, prefetch 2": feed(data.batch(BATCH), 2),
        "rx.data shuffled, prefetch 0": feed(data.shuffle(seed=0).batch(BATCH), 0),
    }


def installed(name: str) -> ModuleType | None:
    """The module, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def peers(strategy: rx.MirroredStrategy, rows: Rows) -> dict[str, Iterator[Any]]:
    """Batches of other libraries, as they come, with a `device_put` by hand."""
    sharding = halves(strategy)
    found = {}
    if grain := installed("grain"):

        class Source:
            def __len__(self) -> int:
                return len(rows[0])

            def __getitem__(self, index: int) -> tuple[Any, Any]:
                return rows[0][index], rows[1][index]

        # One thread and a small buffer, so that no rows are read in the others' turns.
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        dataset = grain.MapDataset.source(Source()).batch(BATCH).to_iter_dataset(options)
        found["Grain"] = passes(lambda: dataset)
    if tf := installed("tensorflow"):
        pipeline = tf.data.Dataset.from_tensor_slices(rows).batch(BATCH).prefetch(2)
        found["tf.data"] = passes(pipeline.as_numpy_iterator)
    if (torch := installed("torch")) and (data := installed("torch.utils.data")):
        tensors = data.TensorDataset(*map(torch.from_numpy, rows))
        loader = data.DataLoader(tensors, batch_size=BATCH)
        found["torch DataLoader"] = passes(
            lambda: (tuple(leaf.numpy() for leaf in batch) for batch in loader)
        )
    return {
        f"{name}, device_put": (jax.device_put(batch, sharding) for batch in batches)
        for name, batches in found.items()
    }


def check_rows(contenders: dict[str, Iterator[Any]], rows: Rows) -> None:
    """Stop if a contender does not give every row once a pass. They are warm afterwards."""
    total = float(rows[0].sum(dtype=np.float64))
    for name, batches in contenders.items():
        taken = [jax.tree.leaves(next(batches)) for _ in range(PASS)]
        labels = np.concatenate([np.ravel(leaves[1]) for leaves in taken])
        x = sum(float(np.asarray(leaves[0]).sum(dtype=np.float64)) for leaves in taken)
        if not (np.bincount(labels) == np.bincount(rows[1])).all() or abs(x - total) > 1e-3:
            raise SystemExit(f"Other rows were read: {name}")


def next_leaf(batches: Iterator[Any], held: list[Any] | None = None) -> Step:
    """A step that only takes the next batch, and holds it where there is a list for that."""

    def step() -> jax.Array:
        batch = next(batches)
        if held is not None:
            held.append(batch)
        x = batch[0]
        return x.stacked if isinstance(x, rx.PerReplica) else x

    return step


def batch_cost(strategy: rx.MirroredStrategy, rounds: int) -> list[Comparison]:
    """CPU time of the process a batch, so that the work of every thread counts."""
    rows = some_rows(32)
    ours = distributed(strategy, rows)
    others = peers(strategy, rows)
    contenders = {**loops_by_hand(strategy, rows), **ours, **others}
    check_rows(contenders, rows)
    steps = {name: next_leaf(batches) for name, batches in contenders.items()}
    seconds = take_turns(steps, rounds=rounds, bursts=3, clock=time.process_time, wait=False)
    limit = MAX_OVERHEAD_US
    return [
        compare(seconds, "arrays, prefetch 0", "slice, device_put", "us", max_more=limit),
        compare(seconds, "rx.data, prefetch 0", "slice, device_put", "us", max_more=limit),
        compare(seconds, "rx.data, prefetch 2", "slice, device_put", "us"),
        compare(seconds, "rx.data, prefetch 0", "slice, callback", "us"),
        compare(seconds, "rx.data, prefetch 0", "placed before", "us"),
        compare(seconds, "rx.data shuffled, prefetch 0", "shuffle, device_put", "us"),
        *(compare(seconds, "rx.data, prefetch 2", name, "us") for name in others),
    ]


def loop_cost(strategy: rx.MirroredStrategy, rounds: int) -> list[Comparison]:
    """CPU time a batch of the thread that runs the loop, which takes them as fast as they come.

    Batches are held: to free one costs JAX as much as to take it, in any loop but that over batches
    that were placed before.
    """
    rows = some_rows(32)
    contenders = {**loops_by_hand(strategy, rows), **distributed(strategy, rows)}
    held: list[Any] = []
    steps = {name: next_leaf(batches, held) for name, batches in contenders.items()}
    seconds = take_turns(steps, rounds=rounds, bursts=3, clock=time.thread_time, wait=False)
    limit = MAX_OVERHEAD_US
    return [
        compare(seconds, "rx.data, prefetch 2", "placed before", "us", max_more=limit),
        compare(seconds, "rx.data, prefetch 2", "slice, device_put", "us"),
        compare(seconds, "rx.data, prefetch 0", "slice, device_put", "us"),
    ]


# -- overlap: whether a step waits for its input --------------------------------------------------


class SlowSource:
    """Batches of a source that is waited for, such as a disk.

    Attributes:
        seconds: What a batch costs.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows, self.seconds = rows, 0.0

    def __iter__(self) -> Iterator[Rows]:
        for batch in passes(lambda: batches_of(self._rows)):
            time.sleep(self.seconds)
            yield batch


class Trained:
    """An MLP that is trained batch by batch, on the replicas or by hand."""

    def __init__(self, strategy: rx.MirroredStrategy, *, with_replicax: bool) -> None:
        self._layers = jax.device_put(dense_layers(MLP), strategy.replica_mesh.mirrored)

        def ours(layers: Any, batch: Any) -> Any:
            def loss_fn(layers: Any) -> Any:
                return rx.get_replica_context().global_mean(row_losses(layers, batch))

            loss, gradients = jax.value_and_grad(loss_fn)(layers)
            return sgd(layers, all_reduce_mean(gradients)), loss

        def theirs(layers: Any, batch: Any) -> Any:
            def loss_fn(layers: Any) -> Any:
                return row_losses(layers, batch).mean()

            loss, gradients = jax.value_and_grad(loss_fn)(layers)
            return sgd(layers, psum_each(gradients)), psum_each(loss)

        def run(layers: Any, batch: Any) -> Any:
            return strategy.run(ours, args=(layers, batch))

        self._run: Callable[..., Any] = (
            rx.function(run, donate="layers") if with_replicax else jitted(strategy, theirs)
        )

    def step(self, batch: Any) -> None:
        """One step, whose loss is waited for."""
        self._layers, loss = self._run(self._layers, batch)
        loss.block_until_ready()


def fed(model: Trained, batches: Iterator[Any]) -> tuple[float, float]:
    """Seconds a step, and those of them that it waited for its batch: medians of `BURST` steps."""
    whole, waited = [], []
    for number in range(BURST + 4):
        asked = time.perf_counter()
        batch = next(batches)
        got = time.perf_counter()
        model.step(batch)
        if number >= 4:  # Before that, what was placed ahead in the other contenders' turns.
            waited.append(got - asked)
            whole.append(time.perf_counter() - asked)
    return statistics.median(whole), statistics.median(waited)


def overlap(strategy: rx.MirroredStrategy, rounds: int) -> list[Comparison]:
    """Wall time of a step whose source takes 0.6 of it, and the time that it waits."""
    ours, theirs = (Trained(strategy, with_replicax=x) for x in (True, False))
    source, sharding = SlowSource(some_rows(MLP[0])), halves(strategy)
    one = next(iter(strategy.distribute_dataset([next(iter(source))])))

    def feed(prefetch: int) -> Iterator[Any]:
        options = rx.InputOptions(prefetch=prefetch)
        return iter(strategy.distribute_dataset(source, options))

    runs: dict[str, tuple[Trained, Iterator[Any]]] = {
        "step alone": (ours, itertools.repeat(one)),
        "by hand, in series": (theirs, (jax.device_put(batch, sharding) for batch in source)),
        "prefetch 0": (ours, feed(0)),
        "prefetch 2": (ours, feed(2)),
    }
    for run in runs.values():
        fed(*run)
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, run in runs.items():
            whole, waited = fed(*run)
            seconds.setdefault(name, []).append(whole)
            seconds.setdefault(f"{name}: wait", []).append(waited)
            if name == "step alone":
                # 3 ms of 5 ms. A busy machine makes the step longer, but not the wait for a disk.
                source.seconds = 0.6 * min(seconds[name])
    fed_ones = list(runs)[1:]
    limits: dict[str, Any] = {"prefetch 2": {"max_ratio": 0.05}}
    return [
        *(compare(seconds, name, "step alone", "ms") for name in fed_ones),
        *(
            compare(seconds, f"{name}: wait", name, "ms", **limits.get(name, {}))
            for name in fed_ones
        ),
    ]


def main() -> None:
    """Measure everything, print the tables, and write them where asked."""
    report = Report("input", __doc__.splitlines()[0])
    strategy = cpu_strategy()
    if absent := [name for name in PEERS if installed(name) is None]:
        report.console.print(f"Not installed, so not measured: {', '.join(absent)}.")
    leaves = f"f32[{BATCH}, 32] and i32[{BATCH}]"
    report.add(f"CPU time of the process a batch of {leaves}", batch_cost(strategy, report.rounds))
    title = f"CPU time of the loop's thread a batch of {leaves}, which only takes batches"
    report.add(title, loop_cost(strategy, report.rounds))
    title = f"Wall time a step, MLP {'-'.join(map(str, MLP))}, batch {BATCH}, fed by a slow source"
    report.add(title, overlap(strategy, report.rounds))
    report.write()


if __name__ == "__main__":
    main()
