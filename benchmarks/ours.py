"""Trains with replicax, and by hand in jax, when it is asked to: a program for `steps.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from contenders import makers
from measuring import BURST, Step, cpu_strategy
from model_contenders import FITS, LOOPS, PEER_FITS
from serving import Advance, answers, options, serve
from workloads import WORKLOADS, Workload

import replicax as rx


def advancing(step: Step) -> Advance:
    """So many steps, with waits, since hundreds under way dead-lock on the CPU."""

    def advance(steps: int) -> float:
        for number in range(1, steps):
            loss = step()
            if number % BURST == 0:
                loss.block_until_ready()
        return float(np.asarray(step().addressable_shards[0].data))

    return advance


def contenders(
    strategy: rx.Strategy, workload: Workload, processes: int
) -> dict[str, Callable[[], Advance]]:
    """All that a workload is for."""
    found: dict[str, Callable[[], Advance]] = {}
    for name, make in {**makers(workload), **LOOPS}.items():

        def of_steps(make: Any = make) -> Advance:
            return advancing(make(strategy, workload))

        found[name] = of_steps
    if not workload.statistics():  # `fit` normalises over the global batch.
        fits = FITS if processes > 1 else {**FITS, **PEER_FITS}
        found |= {name: functools.partial(make, strategy, workload) for name, make in fits.items()}
    return found


def main() -> None:
    """Serve."""
    out = answers()
    chosen = options(__doc__ or "").parse_args()
    workload = WORKLOADS[chosen.workload](small=chosen.small)
    strategy = cpu_strategy() if chosen.processes == 1 else rx.MultiWorkerMirroredStrategy()
    serve(contenders(strategy, workload, chosen.processes), f"jax {jax.__version__}", out)


if __name__ == "__main__":
    main()
