"""Which leaves should travel in packs: the measurements behind the limits of `_packing.py`.

    python benchmarks/packing.py                    # inside a process
    python benchmarks/packing.py --processes 2      # between two processes, over Gloo
    python benchmarks/packing.py --platform cuda    # between the GPUs of this process, over NCCL

A step trains dense layers whose weights have one size. In one program each weight travels alone,
in the other all weights travel in one pack; biases are packed in both. Both take turns. A ratio
below 1 says that leaves of this size should be packed. The second table has many small leaves, in
packs of several sizes, beside one pack for all.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measuring import Comparison, Report, Step, compare, cpu_strategy, take_turns

import replicax as rx
from replicax.testing import run_workers

KIB = 1024
WIDTHS = (32, 64, 90, 128, 181, 256, 362, 512, 724)
"""Of the layers: weights of 4 KiB to 2 MiB."""

LAYERS = 8
ROWS = 16
ALL = 1 << 40
"""A size that every pack is below."""

MANY = 100
PACKS = (64 * KIB, 256 * KIB, 1024 * KIB)


def training(
    strategy: rx.Strategy, width: int, count: int, bytes_per_pack: int, *, alone: bool = False
) -> Step:
    """A step that trains `count` dense layers; weights may travel alone."""
    options = rx.CommunicationOptions(bytes_per_pack=bytes_per_pack)
    of_weights = rx.CommunicationOptions(bytes_per_pack=1)
    rng = np.random.default_rng(0)
    weights = [
        (rng.normal(size=(width, width)) / np.sqrt(width)).astype(np.float32) for _ in range(count)
    ]
    state = {"w": weights, "b": [np.zeros(width, np.float32) for _ in range(count)]}
    batch = rng.normal(size=(ROWS, width)).astype(np.float32)

    def rows(state: Any, hidden: Any) -> Any:
        for w, b in zip(state["w"], state["b"], strict=True):
            hidden = jnp.tanh(hidden @ w + b)
        return jnp.square(hidden).mean(-1)

    def replica_step(state: Any, batch: Any) -> Any:
        ctx = rx.get_replica_context()
        loss, gradients = jax.value_and_grad(lambda s: ctx.global_mean(rows(s, batch)))(state)
        if alone:
            gradients = {
                "w": ctx.all_reduce("mean", gradients["w"], of_weights),
                "b": ctx.all_reduce("mean", gradients["b"], options),
            }
        else:
            gradients = ctx.all_reduce("mean", gradients, options)
        return jax.tree.map(lambda w, g: w - 0.01 * g, state, gradients), loss

    @rx.function(donate="state")
    def run(state: Any, batch: Any) -> Any:
        return strategy.run(replica_step, args=(state, batch))

    placed = next(iter(strategy.distribute_dataset([batch])))

    def next_step() -> jax.Array:
        nonlocal state
        state, loss = run(state, placed)
        return loss

    return next_step


def turns(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds of a step on the clock, the wait included."""
    for step in steps.values():
        step().block_until_ready()
    return take_turns(steps, rounds=rounds, bursts=1, clock=time.perf_counter, wait=True)


def leaves(strategy: rx.Strategy, rounds: int, widths: Sequence[int]) -> Iterator[Comparison]:
    """For each size of the weights: all in one pack beside each alone."""
    for width in widths:
        size = f"{width * width * 4 / KIB:.0f} KiB"
        steps = {
            f"{size}: packed": training(strategy, width, LAYERS, ALL),
            f"{size}: alone": training(strategy, width, LAYERS, ALL, alone=True),
        }
        yield compare(turns(steps, rounds), *steps, "ms")


def packs(strategy: rx.Strategy, rounds: int) -> Iterator[Comparison]:
    """Many leaves of 4 KiB and 32 KiB in packs of several sizes, beside one pack for all."""
    for width in (32, 90):
        size = f"{MANY} of {width * width * 4 / KIB:.0f} KiB"
        whole = f"{size}: one pack"
        steps = {whole: training(strategy, width, MANY, ALL)}
        for limit in PACKS:
            steps[f"{size}: packs of {limit // KIB} KiB"] = training(strategy, width, MANY, limit)
        seconds = turns(steps, rounds)
        for name in list(steps)[1:]:
            yield compare(seconds, name, whole, "ms")


def told(comparisons: Iterator[Comparison]) -> list[Comparison]:
    """All of them, each printed as soon as it is there."""
    found = []
    for each in comparisons:
        print(f"{each.ratio:.2f} ({each.lowest:.2f}-{each.highest:.2f}) {each.what}", flush=True)
        found.append(each)
    return found


def measure(
    strategy: rx.Strategy, rounds: int, widths: Sequence[int]
) -> dict[str, list[Comparison]]:
    """Both tables; the first alone where some widths were chosen."""
    tables = {"Weights in one pack, beside each alone": told(leaves(strategy, rounds, widths))}
    if tuple(widths) == WIDTHS:
        tables["Packs of several sizes, beside one pack"] = told(packs(strategy, rounds))
    return tables


def in_worker(rounds: int, widths: Sequence[int]) -> dict[str, list[Comparison]]:
    """What a worker measures."""
    return measure(rx.MultiWorkerMirroredStrategy(), rounds, widths)


def main() -> None:
    """Measure, print, and write figures where that was asked for."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--processes", type=int, default=1, help="1, or one replica in each")
    parser.add_argument("--platform", default="cpu", help="cpu, or that of the devices here")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="of the layers")
    report = Report("packing", __doc__.splitlines()[0], parser, rounds=9)
    processes, platform = report.options.processes, report.options.platform
    widths = tuple(report.options.widths)
    if processes > 1:
        environment = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
        results = run_workers(
            processes, in_worker, report.rounds, widths, timeout=3600, environment=environment
        )
        tables = results[0].unwrap()
    elif platform == "cpu":
        tables = measure(cpu_strategy(), report.rounds, widths)
    else:
        tables = measure(rx.MirroredStrategy(), report.rounds, widths)
    for title, comparisons in tables.items():
        report.add(title, comparisons)
    report.console.print(f"Load of the machine: {os.getloadavg()[0]:.1f}.")
    report.write()


if __name__ == "__main__":
    main()
