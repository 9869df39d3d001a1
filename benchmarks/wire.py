"""What reductions in half precision save and cost: `CommunicationOptions(wire_dtype=...)`.

    python benchmarks/wire.py                       # both parts; some minutes
    python benchmarks/wire.py --part time           # between two processes, over Gloo
    python benchmarks/wire.py --part training       # the digits of examples/digits.py

The first part reduces gradients of several sizes, in float32 and in half precision in turns. The
second trains the same network from the same weights on the same batches with each.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measuring import REPLICAS, Comparison, Report, Step, compare, cpu_strategy, take_turns
from rich.table import Table

import replicax as rx
from replicax.testing import run_workers

EXACT, HALF, SCALED, FED = "float32", "bfloat16", "float16", "bfloat16 with error feedback"
WIRES = {EXACT: EXACT, HALF: HALF, SCALED: SCALED, FED: HALF}
MIB = 2**20
SIZES = (MIB // 4, 4 * MIB, 16 * MIB)
BATCH = 64


# -- time ------------------------------------------------------------------------------------------


def reducing(strategy: rx.Strategy, size: int, what: str) -> Step:
    """A step that combines `size` bytes of gradients, and applies them."""
    options = rx.CommunicationOptions(wire_dtype=WIRES[what])
    with strategy.scope():
        w = rx.Variable(jnp.ones(size // 4))
        feedback = rx.precision.ErrorFeedback([w], options) if what == FED else None

    def replica_step(scale: Any) -> Any:
        ctx = rx.get_replica_context()
        gradients = [w.value * (scale + ctx.replica_id_in_sync_group)]
        if feedback is not None:
            (gradient,) = feedback.all_reduce(gradients)
        else:
            (gradient,) = ctx.all_reduce("mean", gradients, options)
        w.assign_sub(1e-3 * gradient)
        return gradient[0]

    @rx.function
    def run(scale: Any) -> Any:
        return strategy.run(replica_step, args=(scale,))

    scale = jnp.float32(0.5)
    return lambda: run(scale)


def in_worker(rounds: int) -> list[Comparison]:
    """What each of the workers measures."""
    strategy, found = rx.MultiWorkerMirroredStrategy(), []
    for size in SIZES:
        steps = {f"{size / MIB:g} MiB, {what}": reducing(strategy, size, what) for what in WIRES}
        for step in steps.values():
            step().block_until_ready()
        seconds = take_turns(
            steps, rounds=rounds, bursts=1, clock=time.perf_counter, wait=True, steps_in_burst=4
        )
        first, *others = steps
        found += [compare(seconds, other, first, "ms") for other in others]
    return found


# -- training --------------------------------------------------------------------------------------


def trained(strategy: rx.Strategy, digits: Any, what: str, epochs: int) -> tuple[float, float]:
    """The loss of the last epoch and the accuracy on the test set."""
    options = rx.CommunicationOptions(wire_dtype=WIRES[what])
    state, (train, test) = digits.initial_state(), digits.train_and_test_data()
    feedback = None
    if what == FED:
        with strategy.scope():
            feedback = rx.precision.ErrorFeedback(state.weights, options)

    def replica_step(state: Any, batch: Any) -> Any:
        ctx = rx.get_replica_context()

        def loss_of(weights: Any) -> Any:
            return ctx.global_mean(digits.loss_and_hits(weights, batch)[0])

        loss, gradients = jax.value_and_grad(loss_of)(state.weights)
        if feedback is not None:
            gradients = feedback.all_reduce(gradients)
        else:
            gradients = ctx.all_reduce("mean", gradients, options)
        return digits.updated(state, gradients), loss

    @functools.partial(rx.function, donate="state")
    def run(state: Any, batch: Any) -> Any:
        return strategy.run(replica_step, args=(state, batch))

    losses = []
    for epoch in range(epochs):
        batches = [
            batch for batch in digits.shuffled(train, BATCH, epoch) if len(batch.labels) == BATCH
        ]
        losses = []
        for batch in strategy.distribute_dataset(batches):
            state, loss = run(state, batch)
            losses.append(float(loss))
    hits = digits.loss_and_hits(jax.tree.map(np.asarray, state.weights), test)[1]
    return float(np.mean(losses)), float(hits.mean())


def training(report: Report, strategy: rx.Strategy, epochs: int) -> None:
    """Train with each, and print how it ends."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    import digits  # noqa: PLC0415 - of the examples

    table = Table(title=f"Digits, {epochs} epochs, {strategy.num_replicas_in_sync} replicas")
    for column in ("gradients travel as", "loss of the last epoch", "test accuracy"):
        table.add_column(column)
    for what in WIRES:
        loss, accuracy = trained(strategy, digits, what, epochs)
        table.add_row(what, f"{loss:.6f}", f"{accuracy:.4f}")
    report.console.print(table)


def main() -> None:
    """Measure and print; write figures where that was asked for."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--part", choices=("time", "training", "both"), default="both")
    parser.add_argument("--epochs", type=int, default=5)
    report = Report("wire", __doc__.splitlines()[0], parser, rounds=9)
    part = report.options.part
    parts: dict[str, Callable[[], None]] = {}
    if part != "time":
        parts["training"] = lambda: training(report, cpu_strategy(), report.options.epochs)
    if part != "training":
        parts["time"] = lambda: report.add(
            f"A step that reduces gradients between {REPLICAS} processes",
            run_workers(REPLICAS, in_worker, report.rounds, timeout=3600)[0].unwrap(),
        )
    for each in parts.values():
        each()
    report.console.print(f"Load of the machine: {os.getloadavg()[0]:.1f}.")
    report.write()


if __name__ == "__main__":
    main()
