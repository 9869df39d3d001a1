"""What a step takes beside the best that is known by hand in jax, on five workloads.

    make bench                                      # all; some minutes
    make bench ARGS="--workloads mlp layers --processes 2 --rounds 12"

`make bench` writes the figures to `benchmarks/figures/`, and then the page docs/performance.md.

Two replicas on two cores: in one process on two logical CPU devices, or in two processes with a
core each. All contenders compute the same (their losses after 20 steps are compared first), take
turns, and are compared within each round. With `--json FOLDER` the figures are written, and a
picture where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from contenders import BY_HAND, OURS, made
from measuring import REPLICAS, Comparison, Report, Step, burst, compare, cpu_strategy, take_turns
from workloads import WORKLOADS

import replicax as rx
from replicax.testing import run_workers

TURN_SECONDS = 0.25
MOST_STEPS = 16
STEPS_COMPARED = 20
TOLERANCE = 1e-3
PLACES = {1: "One process", 2: "Two processes"}
TARGETS = {"mlp": 1.03, "convnet": 1.03, "transformer": 1.03}
"""At most this many times the best by hand."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one workload took.

    Attributes:
        seconds: Of a step, one entry a round, for each contender.
        losses: After 20 steps.
        load: Of the machine, when it was measured: how many threads wanted a core.
    """

    seconds: dict[str, list[float]]
    losses: dict[str, float]
    load: float


def measure(strategy: rx.Strategy, name: str, rounds: int, names: tuple[str, ...]) -> Figures:
    """Let the contenders of one workload take turns."""
    workload = WORKLOADS[name]()
    steps = made(strategy, workload, names)
    losses = {name: _loss_after(step) for name, step in steps.items()}
    spread = max(losses.values()) - min(losses.values())
    if not spread <= TOLERANCE:
        sys.exit(f"{workload.title}: the losses after {STEPS_COMPARED} steps differ: {losses}")
    count = _steps_in_a_turn(strategy, next(iter(steps.values())))
    seconds = take_turns(
        steps, rounds=rounds, bursts=1, clock=time.perf_counter, wait=True, steps_in_burst=count
    )
    return Figures(seconds, losses, round(os.getloadavg()[0], 1))


def _loss_after(step: Step) -> float:
    loss = step()
    for _ in range(STEPS_COMPARED - 1):
        loss.block_until_ready()
        loss = step()
    return float(np.asarray(loss.addressable_shards[0].data))


def _steps_in_a_turn(strategy: rx.Strategy, step: Step) -> int:
    """As many as fit, the same number in all processes."""
    seconds = burst(step, time.perf_counter, wait=True, steps=2)
    count = max(1, min(MOST_STEPS, round(TURN_SECONDS / seconds)))
    counts = rx.PerReplica([np.int32(count)] * len(strategy.replica_mesh.local_devices))
    return int(strategy.reduce("mean", counts, axis=None))


def in_worker(name: str, rounds: int, contenders: tuple[str, ...]) -> dict[str, Any]:
    """What each of two workers measures; this module has another name there, and its class too."""
    figures = measure(rx.MultiWorkerMirroredStrategy(), name, rounds, contenders)
    return dataclasses.asdict(figures)


_local_strategy = functools.cache(cpu_strategy)


def in_one_process(name: str, rounds: int, contenders: tuple[str, ...]) -> Figures:
    """The same on two logical devices of this process."""
    return measure(_local_strategy(), name, rounds, contenders)


def in_two_processes(name: str, rounds: int, contenders: tuple[str, ...]) -> Figures:
    """The same in two processes, each of which computes in one thread."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
    environment = {"XLA_FLAGS": flags.strip(), "OMP_NUM_THREADS": "1"}
    results = run_workers(
        REPLICAS, in_worker, name, rounds, contenders, timeout=3600, environment=environment
    )
    return Figures(**results[0].unwrap())


def compared(name: str, figures: Figures) -> list[Comparison]:
    """Each of ours beside each by hand; the best of those is the one that counts."""
    hands = [each for each in BY_HAND if each in figures.seconds]
    best = min(hands, key=lambda each: statistics.median(figures.seconds[each]), default=None)
    rows = []
    for what in OURS:
        for hand in hands if what in figures.seconds else ():
            limit = TARGETS.get(name) if hand == best else None
            rows.append(compare(figures.seconds, what, hand, "ms", max_ratio=limit))
    return rows


def picture(file: Path, found: dict[str, dict[str, Figures]]) -> None:
    """Bars: each contender beside the best by hand, for each workload."""
    import matplotlib as mpl  # noqa: PLC0415 - only where it is installed

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of the back end

    figure, axes = plt.subplots(len(found), 1, figsize=(10, 4 * len(found)), squeeze=False)
    for (where, workloads), (axis,) in zip(found.items(), axes, strict=True):
        contenders = list(next(iter(workloads.values())).seconds)
        width = 0.8 / len(contenders)
        for number, contender in enumerate(contenders):
            heights = [_beside_best(figures, contender) for figures in workloads.values()]
            places = [place + number * width for place in range(len(workloads))]
            axis.bar(places, heights, width, label=contender)
        axis.set_xticks([place + 0.4 for place in range(len(workloads))], list(workloads))
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_title(f"{where}: time of a step beside the best by hand")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    plt.close(figure)


def _beside_best(figures: Figures, contender: str) -> float:
    medians = {name: statistics.median(values) for name, values in figures.seconds.items()}
    hands = [median for name, median in medians.items() if name in BY_HAND]
    return medians[contender] / min(hands or medians.values())


def write(folder: Path, found: dict[str, dict[str, Figures]], rounds: int) -> None:
    """The figures as JSON, beside those that were there of other workloads."""
    file = folder / "steps.json"
    before = json.loads(file.read_text())["found"] if file.exists() else {}
    merged: dict[str, Any] = {}
    for where in PLACES.values():
        new = {
            name: {"jax": jax.__version__, "rounds": rounds, **dataclasses.asdict(figures)}
            for name, figures in found.get(where, {}).items()
        }
        old = before.get(where, {})
        both = {name: new.get(name, old.get(name)) for name in WORKLOADS}
        merged[where] = {name: figures for name, figures in both.items() if figures is not None}
    facts = {
        "cores": os.cpu_count(),
        "replicas": REPLICAS,
        "by_hand": list(BY_HAND),
        "ours": list(OURS),
        "titles": {name: WORKLOADS[name]().title for name in WORKLOADS},
        "found": {where: workloads for where, workloads in merged.items() if workloads},
    }
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(facts, indent=1) + "\n")


def options() -> argparse.ArgumentParser:
    """What to run."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--processes", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    parser.add_argument(
        "--contenders", nargs="+", choices=[*OURS, *BY_HAND], default=[*OURS, *BY_HAND]
    )
    return parser


def main() -> None:
    """Measure, print and write."""
    report = Report("steps", __doc__.splitlines()[0], options(), rounds=8)
    chosen = report.options
    found: dict[str, dict[str, Figures]] = {}
    for count in chosen.processes:
        where = PLACES[count]
        run = in_one_process if count == 1 else in_two_processes
        for name in chosen.workloads:
            figures = run(name, report.rounds, tuple(chosen.contenders))
            found.setdefault(where, {})[name] = figures
            report.add(f"{where}: {WORKLOADS[name]().title}", compared(name, figures))
            if chosen.json is not None:
                write(chosen.json, found, report.rounds)
    report.console.print(f"Load of the machine: {os.getloadavg()[0]:.1f}.")
    if chosen.json is not None:
        print(f"Figures are in {chosen.json / 'steps.json'}.")
        if importlib.util.find_spec("matplotlib") is not None:
            picture(chosen.json / "steps.png", found)


if __name__ == "__main__":
    main()
