"""Repeat the faults of tests/cluster many times, and write what was measured into docs/faults.md.

Each run is a job of two real worker processes that train under a real master, and one fault. It
counts only if the survivors raise the failure with its kind and its culprit, and end by
themselves with a code above 0.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import logging
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from replicax.cluster import MasterProcess, Timeouts

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- soak: begin -->", "<!-- soak: end -->"
BEACON_S = 2.0
STALL_S = 2.0
TIMEOUTS = Timeouts(start=60, beacon=BEACON_S, shutdown=5)


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: As the page says it.
        fault: What `program.py` calls it; empty where the master is killed.
        kind: How the survivors are told.
        limit: Seconds that they may take.
        size: Floats in the array that is averaged.
        loop: Which loop of `program.py`.
        stall: `Timeouts.stall`.
    """

    name: str
    fault: str
    kind: str
    limit: float = 1.0
    size: int = 2000
    loop: str = "main"
    stall: float | None = None


FAULTS = [
    Fault("a Python exception", "raise", "exception"),
    Fault("a Python exception, 4 MB in transfer", "raise", "exception", size=1_000_000),
    Fault("`kill -9`", "kill", "signal"),
    Fault("`kill -9`, 4 MB in transfer", "kill", "signal", size=1_000_000),
    Fault("`kill -9`, the program is so small that it runs inline", "kill", "signal", size=2),
    Fault("`kill -9`, the training loop is in another thread", "kill", "signal", loop="thread"),
    Fault("SIGSTOP", "stop", "frozen", BEACON_S + 1),
    Fault("Python stands still, `stall=2`", "stall", "stall", STALL_S + 1, stall=STALL_S),
    Fault("it ends early with code 0", "exit", "exit", 2.0),
    Fault("`kill -9` of the master", "", "lost"),
]


def jobs_of_the_tests() -> ModuleType:
    """`tests/cluster/conftest.py`, which knows how to run a job."""
    path = ROOT / "tests" / "cluster" / "conftest.py"
    spec = importlib.util.spec_from_file_location("cluster_jobs", path)
    assert spec is not None  # noqa: S101 - for mypy
    assert spec.loader is not None  # noqa: S101 - for mypy
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(jobs: Any, nursery: Any, fault: Fault, folder: Path) -> float:
    """One job; returns how long the slowest survivor took to raise.

    Raises:
        AssertionError: A survivor did not raise what it should, or ended otherwise.
    """
    timeouts = Timeouts(**{**TIMEOUTS.to_json(), "stall": fault.stall})
    is_master = not fault.fault
    survivors = (0, 1) if is_master or fault.stall else (0,)
    master = None
    if is_master:
        master = MasterProcess(world_size=2, secret=jobs.SECRET, timeouts=timeouts)
    job = jobs.RealJob(nursery, folder, timeouts, master)
    try:
        steps = "100000" if is_master else "20"
        job.start(fault.fault, SIZE=str(fault.size), LOOP=fault.loop, STEPS=steps)
        if is_master:
            job.until(lambda: all(worker.has("stepping") for worker in job.workers))
            job.kill_master(9)
        job.until_ended(*survivors)
        began = job.fault_time if is_master else job.workers[1].event("fault")["time"]
        raised = [job.workers[rank].event("raised") for rank in survivors]
        culprit = None if is_master else 1
        for rank, event in zip(survivors, raised, strict=True):
            said = (event["kind"], event["task"], job.workers[rank].code)
            assert said == (fault.kind, culprit, 1), job.workers[rank].text  # noqa: S101
        return float(max(event["time"] for event in raised) - began)
    finally:
        job.close()


def soak(repetitions: int) -> tuple[list[str], bool]:
    """Runs everything; returns the rows of the table, and whether all was as it should be."""
    jobs = jobs_of_the_tests()
    nursery = jobs.Nursery()
    rows, is_good = [], True
    for fault in FAULTS:
        seconds: list[float] = []
        for number in range(repetitions):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    seconds.append(run(jobs, nursery, fault, Path(folder)))
                except AssertionError as error:
                    print(f"{fault.name}, run {number}: {error}", flush=True)
        in_time = sum(each <= fault.limit for each in seconds)
        is_good &= in_time == repetitions
        middle = f"{statistics.median(seconds):.3f}" if seconds else "-"
        worst = f"{max(seconds):.3f}" if seconds else "-"
        rows.append(
            f"| {fault.name} | `{fault.kind}` | {len(seconds)} of {repetitions} "
            f"| {middle} | {worst} | {fault.limit:g} |"
        )
        print(rows[-1], flush=True)
    nursery.close()
    return rows, is_good


def write(rows: list[str], repetitions: int) -> None:
    """Puts the table into the page."""
    today = dt.datetime.now(tz=dt.UTC).date()
    how = (
        f"Measured on {today} with jax {jax.__version__}, Python {platform.python_version()}, "
        f"{repetitions} runs each: two workers on one host with {os.cpu_count()} cores and "
        f"a load of {os.getloadavg()[0]:.0f}. Seconds from the fault until the last "
        "survivor had raised."
    )
    head = [
        BEGIN,
        "",
        how,
        "",
        "| fault of worker 1 | kind | raised, with the culprit named | median | worst | limit |",
        "|---|---|---|---|---|---|",
    ]
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(before + "\n".join([*head, *rows, "", END]) + after, encoding="utf-8")


def main() -> int:
    """Soak, and write the page; 1 if a run was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--dry", action="store_true", help="leave the page alone")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    rows, is_good = soak(options.repetitions)
    if not options.dry:
        write(rows, options.repetitions)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
