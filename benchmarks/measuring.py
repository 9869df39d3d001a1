"""What the benchmarks share: contenders that take turns, their comparison, and the report.

A ratio is taken within each round, so that a busy machine slows both sides of it. Nothing here
fails because of a figure: a benchmark is no test.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import pathlib
import statistics
import sys
from collections.abc import Callable

import jax
from rich.console import Console
from rich.table import Table

import replicax as rx

Step = Callable[[], jax.Array]
"""One training step with its state inside; returns the loss, f32[]."""

BURST = 16
"""Steps between two waits: on the CPU, hundreds of steps with collectives under way dead-lock."""

REPLICAS = 2


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One contender beside another. Lists have one entry a round.

    Attributes:
        what: The contender.
        beside: What it is compared with.
        unit: Of `mine`, `theirs` and `more`: `us` or `ms` a step, `s`, or `MiB`.
        mine: Median of the contender.
        theirs: Median of what it is compared with.
        more: Median difference within a round.
        ratio: Median ratio within a round.
        lowest: The lowest ratio within a round.
        highest: The highest.
        of_least: Ratio of the least figures of both, which a busy machine disturbs least.
        target: What the comparison should keep to; empty if nothing.
        met: Whether it does.
    """

    what: str
    beside: str
    unit: str
    mine: float
    theirs: float
    more: float
    ratio: float
    lowest: float
    highest: float
    of_least: float
    target: str
    met: bool


def compare(
    seconds: dict[str, list[float]],
    what: str,
    beside: str,
    unit: str,
    *,
    max_ratio: float | None = None,
    max_more: float | None = None,
) -> Comparison:
    """Compare two contenders of one run, and judge if there is a limit (`max_more` in `unit`).

    Figures are seconds, or bytes where the unit is `MiB`.
    """
    scale = {"us": 1e6, "ms": 1e3, "s": 1.0, "MiB": 2.0**-20}[unit]
    mine, theirs = ([scale * x for x in seconds[name]] for name in (what, beside))
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    ratio = statistics.median(ratios)
    more = statistics.median(a - b for a, b in zip(mine, theirs, strict=True))
    target, met = "", True
    if max_ratio is not None:
        target, met = f"at most {max_ratio} x", ratio <= max_ratio
    if max_more is not None:
        target, met = f"at most {max_more} {unit} more", more <= max_more
    return Comparison(
        what=what,
        beside=beside,
        unit=unit,
        mine=statistics.median(mine),
        theirs=statistics.median(theirs),
        more=more,
        ratio=ratio,
        lowest=min(ratios),
        highest=max(ratios),
        of_least=min(mine) / min(theirs),
        target=target,
        met=met,
    )


def take_turns(
    steps: dict[str, Step],
    *,
    rounds: int,
    bursts: int,
    clock: Callable[[], float],
    wait: bool,
    steps_in_burst: int = BURST,
) -> dict[str, list[float]]:
    """Let the contenders take turns, without garbage collection.

    Args:
        steps: The contenders.
        rounds: How often each has its turn.
        bursts: Bursts of steps in a turn.
        clock: What is measured, in seconds.
        wait: Whether the wait for the devices at the end of a burst is measured too.
        steps_in_burst: At most `BURST`.

    Returns:
        For each contender the seconds a step: one entry a round. With the wait it is the median of
        the bursts; of CPU time it is the least, as other work on the machine only ever adds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                step = steps[name]
                turn = [
                    burst(step, clock, wait=wait, steps=steps_in_burst) for _ in range(bursts + 1)
                ]
                del turn[0]  # The caches were another contender's.
                seconds[name].append(statistics.median(turn) if wait else min(turn))
    finally:
        gc.enable()
    return seconds


def check_losses(steps: dict[str, Step]) -> None:
    """Stop if the contenders do not compute the same. They are warm afterwards."""
    losses = {name: [float(step()) for _ in range(20)][-1] for name, step in steps.items()}
    if max(losses.values()) - min(losses.values()) > 1e-5:
        sys.exit(f"The losses after 20 steps differ: {losses}")


def burst(step: Step, clock: Callable[[], float], *, wait: bool, steps: int = BURST) -> float:
    """Seconds a step."""
    start = clock()
    for _ in range(steps - 1):
        step()
    loss = step()
    issued = clock()
    loss.block_until_ready()
    return ((clock() if wait else issued) - start) / steps


def show(console: Console, title: str, comparisons: list[Comparison]) -> None:
    """Print one table, ratios first."""
    table = Table(title=title, title_justify="left")
    for column in ("ratio", "range", "of the least", "contender", "beside"):
        table.add_column(column)
    for column in ("its figure", "the other's", "more"):
        table.add_column(column, justify="right")
    table.add_column("target")
    for c in comparisons:
        verdict = c.target and f"{c.target}: {'met' if c.met else 'MISSED'}"
        table.add_row(
            f"{c.ratio:.3f}",
            f"{c.lowest:.2f}-{c.highest:.2f}",
            f"{c.of_least:.3f}",
            c.what,
            c.beside,
            f"{c.mine:.4g} {c.unit}",
            f"{c.theirs:.4g} {c.unit}",
            f"{c.more:.3g} {c.unit}",
            verdict,
        )
    console.print(table)


class Report:
    """The tables of one program.

    Args:
        program: Its name.
        description: What it measures.
        more: A parser of further options, made with `add_help=False`.
        rounds: Turns of each contender, unless an option says otherwise.

    Attributes:
        options: What was given on the command line.
    """

    def __init__(
        self,
        program: str,
        description: str,
        more: argparse.ArgumentParser | None = None,
        rounds: int = 20,
    ) -> None:
        parents = [] if more is None else [more]
        parser = argparse.ArgumentParser(description=description, parents=parents)
        parser.add_argument("--json", type=pathlib.Path, help="write the figures to this folder")
        parser.add_argument("--rounds", type=int, default=rounds, help="turns of each contender")
        self.options = parser.parse_args()
        self._program, self._folder = program, self.options.json
        self.rounds: int = self.options.rounds
        self._tables: dict[str, list[Comparison]] = {}
        self.console = Console(width=None if sys.stdout.isatty() else 150)
        self.console.print(", ".join(f"{name} {value}" for name, value in self._machine.items()))

    @property
    def _machine(self) -> dict[str, str | int | None]:
        return {
            "jax": jax.__version__,
            "Python": sys.version.split()[0],
            "CPU cores": os.cpu_count(),
        }

    def add(self, title: str, comparisons: list[Comparison]) -> None:
        """Print one table, ratios first."""
        self._tables[title] = comparisons
        show(self.console, title, comparisons)

    def write(self) -> None:
        """Write the figures where that was asked for, beside those of other tables there."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{self._program}.json"
        tables = json.loads(file.read_text())["tables"] if file.exists() else {}
        for title, rows in self._tables.items():
            tables[title] = [dataclasses.asdict(row) for row in rows]
        file.write_text(json.dumps({**self._machine, "tables": tables}, indent=2) + "\n")
        self.console.print(f"Figures are in {file}.")


def cpu_strategy() -> rx.MirroredStrategy:
    """`REPLICAS` replicas on logical CPU devices."""
    jax.config.update("jax_platforms", "cpu")
    rx.devices.logical(cpu=REPLICAS)
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(REPLICAS)])
