"""What a sharded optimizer takes beside an unsharded one, in time and in memory.

    python benchmarks/sharding.py                   # 2 replicas in one process; about 2 minutes
    python benchmarks/sharding.py --replicas 4
    python benchmarks/sharding.py --processes 2     # one replica in each of two processes

Both train the transformer of `workloads.py` with Adam, and take turns. A target is a ratio of time
for 2 replicas, which have a core each here; 4 replicas on fewer cores say what happens, not what a
device would do.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from typing import Any

import jax
import numpy as np
import optax
from measuring import Comparison, Report, Step, compare, take_turns
from workloads import WORKLOADS

import replicax as rx
from replicax.testing import run_workers

SHARDED, WHOLE = "a share of the state on each replica", "the whole state on each"
TARGET = 1.05
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
STEPS_COMPARED = 5
TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Figures:
    """What both took.

    Attributes:
        seconds: Of a step, one entry a round.
        state_bytes: Of the state of the optimizer on one device.
    """

    seconds: dict[str, list[float]]
    state_bytes: dict[str, int]


def training(strategy: rx.Strategy, workload: Any, *, sharded: bool) -> tuple[Step, int]:
    """A step with its state inside, and how much optimizer state lies on one device."""
    transformation = optax.adam(1e-3)
    parameters, statistics = workload.state()
    with strategy.scope():
        variables = jax.tree.map(rx.Variable, parameters)
        optimizer = rx.Optimizer(
            rx.shard_optimizer(transformation) if sharded else transformation, variables
        )

    def replica_step(batch: Any) -> Any:
        ctx = rx.get_replica_context()

        def loss() -> Any:
            values = jax.tree.map(lambda variable: variable.value, variables)
            return ctx.global_mean(workload.row_losses(values, statistics, batch)[0])

        value, gradients = rx.value_and_grad(loss, variables)()
        if not sharded:
            gradients = ctx.all_reduce("mean", gradients)
        rx.apply_gradients(optimizer, gradients)
        return value

    @rx.function
    def run(batch: Any) -> Any:
        return strategy.run(replica_step, args=(batch,))

    batch = next(iter(strategy.distribute_dataset([workload.batch()])))
    run(batch).block_until_ready()
    arrays = [variable._value for variable in jax.tree.leaves(optimizer.state)]
    return lambda: run(batch), sum(array.addressable_shards[0].data.nbytes for array in arrays)


def loss_after(step: Step) -> float:
    """The loss of some steps, of which each is waited for."""
    losses = [step().block_until_ready() for _ in range(STEPS_COMPARED)]
    return float(np.asarray(losses[-1].addressable_shards[0].data))


def measure(strategy: rx.Strategy, name: str, rounds: int, clock: str) -> Figures:
    """Let both take turns."""
    workload = WORKLOADS[name]()
    steps, sizes = {}, {}
    for what, sharded in ((SHARDED, True), (WHOLE, False)):
        steps[what], sizes[what] = training(strategy, workload, sharded=sharded)
    losses = {what: loss_after(step) for what, step in steps.items()}
    if not max(losses.values()) - min(losses.values()) <= TOLERANCE:
        sys.exit(f"The losses after {STEPS_COMPARED} steps differ: {losses}")
    seconds = take_turns(
        steps, rounds=rounds, bursts=1, clock=CLOCKS[clock], wait=True, steps_in_burst=3
    )
    return Figures(seconds, sizes)


def in_worker(name: str, rounds: int, clock: str) -> dict[str, Any]:
    """What each of the workers measures."""
    return dataclasses.asdict(measure(rx.MultiWorkerMirroredStrategy(), name, rounds, clock))


def compared(figures: Figures, processes: int, replicas: int) -> list[Comparison]:
    """The sharded one beside the other."""
    limit = TARGET if processes > 1 or replicas <= (os.cpu_count() or 1) else None
    return [compare(figures.seconds, SHARDED, WHOLE, "ms", max_ratio=limit)]


def main() -> None:
    """Measure, print, and write figures where that was asked for."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--processes", type=int, default=1, help="1, or one replica in each")
    parser.add_argument("--replicas", type=int, default=2, help="in one process")
    parser.add_argument("--workload", choices=list(WORKLOADS), default="transformer")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="what is measured")
    report = Report("sharding", __doc__.splitlines()[0], parser, rounds=12)
    name, processes = report.options.workload, report.options.processes
    clock = report.options.clock
    if processes > 1:
        environment = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1"}
        results = run_workers(
            processes, in_worker, name, report.rounds, clock, timeout=3600, environment=environment
        )
        figures, replicas = Figures(**results[0].unwrap()), processes
    else:
        replicas = report.options.replicas
        jax.config.update("jax_platforms", "cpu")
        rx.devices.logical(cpu=replicas)
        devices = [f"cpu:{i}" for i in range(replicas)]
        figures = measure(rx.MirroredStrategy(devices), name, report.rounds, clock)
    title = f"{WORKLOADS[name]().title}, Adam: {replicas} replicas, {processes} process(es)"
    report.add(title, compared(figures, processes, replicas))
    shares = figures.state_bytes[SHARDED] / figures.state_bytes[WHOLE]
    report.console.print(
        f"State of the optimizer on one device: {figures.state_bytes[SHARDED] / 2**20:.2f} MiB "
        f"beside {figures.state_bytes[WHOLE] / 2**20:.2f} MiB, {shares:.3f} of it. "
        f"Load of the machine: {os.getloadavg()[0]:.1f}."
    )
    report.write()


if __name__ == "__main__":
    sys.exit(main())
