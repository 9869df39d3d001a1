"""What it saves to run several small steps in one program, input included.

    make bench-parts                  # or: python benchmarks/dispatches.py --json figures

An MLP that is so small that starting a program costs more than its arithmetic is trained on two
logical CPU devices: one step a call, and 50 steps a call with `steps_per_execution=50`; and both by
hand. Every contender reads the same rows and computes the same losses, which are compared first.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from measuring import BURST, Comparison, Report, compare, cpu_strategy
from overhead import all_reduce_mean, dense_layers, jitted, psum_each, row_losses, sgd

import replicax as rx

STEPS = 50
"""Steps of one program."""

CALLS = 4
"""Such programs in a turn."""

BATCH = 16
LAYERS = [8, 16, 4]
MAX_RATIO = 0.2

Rows = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Features f32[N, D] and labels i32[N]."""

Turn = Callable[[], Any]
"""`STEPS * CALLS` steps; waits for their end and returns the losses."""


def some_rows(turns: int) -> Rows:
    """Rows for so many turns."""
    count = BATCH * STEPS * CALLS * turns
    rng = np.random.default_rng(0)
    return rng.random((count, LAYERS[0]), np.float32), np.arange(count, dtype=np.int32) % LAYERS[-1]


def trained(mean: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """One step on one replica: `layers, loss = step(layers, batch)`."""

    def step(layers: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda w: row_losses(w, batch).mean())(layers)
        gradients, loss = mean((gradients, loss))
        return sgd(layers, gradients), loss

    return step


def in_a_loop(strategy: rx.MirroredStrategy, rows: Rows) -> Turn:
    """An `rx.function` that is called with each batch: `for batch in dataset: step(batch)`."""
    replica_step = trained(all_reduce_mean)

    @rx.function(donate="layers")
    def train(layers: Any, batch: Any) -> Any:
        return strategy.run(replica_step, args=(layers, batch))

    batches = iter(distributed(strategy, rows))
    layers = jax.device_put(dense_layers(LAYERS), strategy.replica_mesh.mirrored)

    def turn() -> Any:
        nonlocal layers
        losses = []
        for batch in itertools.islice(batches, STEPS * CALLS):
            layers, loss = train(layers, batch)
            losses.append(loss)
        return jax.block_until_ready(losses)

    return turn


def together(strategy: rx.MirroredStrategy, rows: Rows) -> Turn:
    """The same step, which takes `STEPS` batches in each call."""
    replica_step = trained(all_reduce_mean)

    @rx.function(donate="layers", steps_per_execution=STEPS)
    def train(layers: Any, batches: Any) -> Any:
        return strategy.run(replica_step, args=(layers, batches.get_next()))

    batches = iter(distributed(strategy, rows))
    layers = jax.device_put(dense_layers(LAYERS), strategy.replica_mesh.mirrored)

    def turn() -> Any:
        nonlocal layers
        losses = []
        for _ in range(CALLS):
            layers, loss = train(layers, batches)
            losses.append(loss)
        return jax.block_until_ready(losses)

    return turn


def distributed(strategy: rx.MirroredStrategy, rows: Rows) -> Any:
    """The rows in batches of `BATCH`."""
    return strategy.distribute_dataset(rows, rx.InputOptions(global_batch_size=BATCH))


def by_hand(strategy: rx.MirroredStrategy, rows: Rows) -> Turn:
    """A donated `jit(shard_map)` for each step, on rows that are sliced and placed before it."""
    train = jitted(strategy, trained(psum_each))
    split = NamedSharding(strategy.replica_mesh.mesh, PartitionSpec("replica"))
    layers = jax.device_put(dense_layers(LAYERS), strategy.replica_mesh.mirrored)
    first = 0

    def turn() -> Any:
        nonlocal layers, first
        losses = []
        for number in range(STEPS * CALLS):
            mine = slice(first, first + BATCH)
            batch = jax.device_put((rows[0][mine], rows[1][mine]), split)
            first += BATCH
            layers, loss = train(layers, batch)
            losses.append(loss)
            if number % BURST == BURST - 1:
                loss.block_until_ready()
        return jax.block_until_ready(losses)

    return turn


def scanned_by_hand(strategy: rx.MirroredStrategy, rows: Rows) -> Turn:
    """A donated scan of `STEPS` such steps, on rows that are placed together before it."""
    mesh, whole = strategy.replica_mesh.mesh, PartitionSpec()
    split = PartitionSpec(None, "replica")
    step = jax.shard_map(
        trained(psum_each),
        mesh=mesh,
        in_specs=(whole, PartitionSpec("replica")),
        out_specs=(whole, whole),
        check_vma=False,
    )
    train = jax.jit(lambda layers, batches: jax.lax.scan(step, layers, batches), donate_argnums=0)
    layers = jax.device_put(dense_layers(LAYERS), strategy.replica_mesh.mirrored)
    first = 0

    def turn() -> Any:
        nonlocal layers, first
        losses = []
        for _ in range(CALLS):
            mine = slice(first, first + STEPS * BATCH)
            batches = (
                rows[0][mine].reshape(STEPS, BATCH, LAYERS[0]),
                rows[1][mine].reshape(STEPS, BATCH),
            )
            first += STEPS * BATCH
            layers, loss = train(layers, jax.device_put(batches, NamedSharding(mesh, split)))
            losses.append(loss)
        return jax.block_until_ready(losses)

    return turn


def dispatches(strategy: rx.MirroredStrategy, rounds: int) -> list[Comparison]:
    """Wall time of a step, with reading and placing its batch."""
    rows = some_rows(turns=rounds + 1)
    in_one = f"{STEPS} steps a call"
    turns = {
        in_one: together(strategy, rows),
        "one by one": in_a_loop(strategy, rows),
        f"{in_one}, by hand": scanned_by_hand(strategy, rows),
        "one by one, by hand": by_hand(strategy, rows),
    }
    losses = [np.hstack([np.asarray(loss) for loss in turn()]) for turn in turns.values()]
    if not all(np.allclose(loss, losses[0], atol=1e-5) for loss in losses):
        sys.exit(f"The losses differ: {[loss[-1] for loss in losses]}")
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            first = number % len(turns)
            for name in [*turns, *turns][first : first + len(turns)]:
                start = time.perf_counter()
                turns[name]()
                seconds[name].append((time.perf_counter() - start) / (STEPS * CALLS))
    finally:
        gc.enable()
    return [
        compare(seconds, in_one, "one by one", "us", max_ratio=MAX_RATIO),
        compare(seconds, in_one, f"{in_one}, by hand", "us"),
        compare(seconds, "one by one", "one by one, by hand", "us"),
    ]


def main() -> None:
    """Measure, print the table, and write it where asked."""
    report = Report("dispatches", "What it saves to run several steps in one program.")
    title = f"A step of an MLP {'-'.join(map(str, LAYERS))} on {BATCH} rows, input included"
    report.add(title, dispatches(cpu_strategy(), report.rounds))
    report.write()


if __name__ == "__main__":
    main()
