"""What a step takes beside the best that is known by hand in jax, or beside other libraries.

    make bench                                      # beside jax by hand; some minutes
    make bench ARGS="--workloads mlp layers --processes 2 --rounds 12"
    make bench-peers                                # beside TensorFlow, PyTorch and Keras

Both write their figures to `benchmarks/figures/`, and then the page docs/performance.md.

Two replicas on two cores: in one process on two logical CPU devices, or in two processes with a
core each. All contenders start from the same weights, read the same batch and compute the same
(their losses after 20 steps are compared), take turns, and are compared within each round. Each
library has a program of its own, which waits while others train. With `--json FOLDER` the figures
are written, and a picture where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from asking import Figures, alternate, running
from chart import draw
from contenders import BY_HAND, OURS
from measuring import REPLICAS, Comparison, Report, compare
from workloads import WORKLOADS, save

FOLDER = Path(__file__).parent
TOLERANCE = 1e-3
PLACES = {1: "One process", 2: "Two processes"}
PER_LEAF = "by hand, an all-reduce a leaf"
LOOPS = ("Keras loop", "Keras fit", "NNX loop")
EVERY_OURS = (*OURS, *LOOPS)
PEERS = {
    "tensorflow": (
        "TensorFlow, one device",
        "TensorFlow MirroredStrategy",
        "TensorFlow MultiWorkerMirroredStrategy",
    ),
    "torch": (
        "PyTorch, one device",
        "PyTorch, one device, sparse rows",
        "PyTorch, DDP",
        "PyTorch, DDP, sparse rows",
    ),
}
KERAS_PEER = "Keras DataParallel fit"
TARGETS = {"mlp": 1.03, "convnet": 1.03, "transformer": 1.03}
"""At most this many times the best by hand."""


def names(processes: int, *, peers: bool) -> list[str]:
    """Who takes part, unless it is said.

    Each program is compiled for minutes in all, so loops on models are measured in one process, and
    beside other libraries one way by hand is enough, as a common reference.
    """
    if not peers:
        return [*OURS, *BY_HAND, *(LOOPS if processes == 1 else ())]
    theirs = [name for each in PEERS.values() for name in each]
    ours = [name for name in OURS if name != "variables"]
    return [*ours, "Keras fit", PER_LEAF, KERAS_PEER, *theirs]


def commands(data: Path, name: str, processes: int, chosen: argparse.Namespace) -> list[list[str]]:
    """The programs that train one workload."""
    arguments = ["--workload", name, "--data", str(data), "--processes", str(processes)]
    arguments += ["--small"] if chosen.small else []
    found = [[sys.executable, str(FOLDER / "ours.py"), *arguments]]
    for library in PEERS if chosen.peers else ():
        program = FOLDER / "peers" / f"{library}_steps.py"
        python = chosen.peers / library / "bin" / "python"
        if not python.exists():
            sys.exit(f"{python} does not exist: `make bench-peers` makes it.")
        found.append([str(python), str(program), *arguments])
    return found


def measure(name: str, processes: int, chosen: argparse.Namespace) -> Figures:
    """Let the contenders of one workload take turns."""
    workload = WORKLOADS[name](small=chosen.small)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, f"{name}.npz")
        save(data, workload)
        with running(commands(data, name, processes, chosen), processes) as programs:
            known = chosen.contenders or names(processes, peers=chosen.peers is not None)
            figures = alternate(programs, known, chosen.rounds)
    return figures


def differ(losses: dict[str, float]) -> bool:
    """Whether the contenders have not computed the same."""
    return not max(losses.values()) - min(losses.values()) <= TOLERANCE


def compared(name: str, figures: Figures, *, peers: bool) -> list[Comparison]:
    """Ours beside each by hand, of which the best counts; or everything beside the reference."""
    seconds = figures.seconds
    if peers:
        others = [each for each in seconds if each != PER_LEAF]
        return [compare(seconds, each, PER_LEAF, "ms") for each in others if PER_LEAF in seconds]
    hands = [each for each in BY_HAND if each in seconds]
    best = min(hands, key=lambda each: statistics.median(seconds[each]), default=None)
    rows = []
    for what in EVERY_OURS:
        for hand in hands if what in seconds else ():
            limit = TARGETS.get(name) if hand == best and what in OURS else None
            rows.append(compare(seconds, what, hand, "ms", max_ratio=limit))
    return rows


def facts(found: dict[str, dict[str, Figures]], before: dict[str, Any]) -> dict[str, Any]:
    """What is written: these figures, and those that were there of other workloads."""
    merged: dict[str, Any] = {}
    for where in PLACES.values():
        new = {name: dataclasses.asdict(each) for name, each in found.get(where, {}).items()}
        both = {**before.get(where, {}), **new}
        if both:
            merged[where] = {name: both[name] for name in WORKLOADS if name in both}
    return {
        "cores": os.cpu_count(),
        "replicas": REPLICAS,
        "by_hand": list(BY_HAND),
        "ours": list(EVERY_OURS),
        "titles": {name: WORKLOADS[name]().title for name in WORKLOADS},
        "found": merged,
    }


def write(file: Path, found: dict[str, dict[str, Figures]]) -> dict[str, Any]:
    """The figures as JSON, as they stand so far."""
    before = json.loads(file.read_text())["found"] if file.exists() else {}
    written = facts(found, before)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(written, indent=1) + "\n")
    return written


def options() -> argparse.ArgumentParser:
    """What to run."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--processes", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    parser.add_argument("--contenders", nargs="+", help="only these")
    parser.add_argument("--small", action="store_true", help="fewer numbers, to try it out")
    parser.add_argument(
        "--peers", type=Path, help="the folder of the other libraries' environments"
    )
    return parser


def main() -> None:
    """Measure, print and write."""
    report = Report("steps", (__doc__ or "").splitlines()[0], options(), rounds=8)
    chosen = report.options
    peers = chosen.peers is not None
    file: Path | None = chosen.json and chosen.json / ("peers.json" if peers else "steps.json")
    found: dict[str, dict[str, Figures]] = {}
    wrong: dict[str, dict[str, float]] = {}
    for name in chosen.workloads:
        for count in chosen.processes:
            figures = measure(name, count, chosen)
            if differ(figures.losses):
                wrong[f"{name}, {PLACES[count].lower()}"] = figures.losses
                continue
            found.setdefault(PLACES[count], {})[name] = figures
            title = f"{PLACES[count]}: {WORKLOADS[name](small=chosen.small).title}"
            report.add(title, compared(name, figures, peers=peers))
            report.console.print(f"{figures.minutes} minutes, load {figures.load}.")
            if file is not None:
                written = write(file, found)
    if file is not None and found:
        print(f"Figures are in {file}.")
        if importlib.util.find_spec("matplotlib") is not None:
            draw(file.with_suffix(".png"), written, PER_LEAF)
    if wrong:
        sys.exit(f"The losses after 20 steps differ, so these figures are left out: {wrong}")


if __name__ == "__main__":
    main()
