"""What the checks of two workers share."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what all tests share

CHECKS: dict[str, Callable[..., Any]] = {}
TOLERANCE = 1e-6


def check(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Run the function in each worker. What it returns must be equal on both."""
    CHECKS[fn.__name__] = fn
    return fn


class Job:
    """What the checks share.

    Attributes:
        strategy: The strategy over both workers.
        rank: Number of this worker.
        folder: A folder of both workers.
    """

    def __init__(self, folder: Path) -> None:
        self.strategy = rx.MultiWorkerMirroredStrategy()
        self.rank = jax.process_index()
        self.folder = folder
        self.ids = self.strategy.distribute_values_from_function(
            lambda context: jnp.full(2, context.replica_id_in_sync_group, jnp.float32)
        )

    def variable(self, value: Any, **options: Any) -> Any:
        with self.strategy.scope():
            return rx.Variable(value, **options)

    def step(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled step of a replica function."""
        return rx.function(lambda *args: self.strategy.run(fn, args=args))


def numbers(value: Any) -> list[Any]:
    """What is written into the results: the value on the host."""
    return np.asarray(value).tolist()


def mine(job: Job, everyone: list[Any]) -> list[Any]:
    """The part of this worker's replicas."""
    return everyone[2 * job.rank : 2 * job.rank + 2]


def raised(kind: type[Exception], fn: Callable[[], Any]) -> str:
    """The message of an error that is raised on both workers."""
    with pytest.raises(kind) as caught:
        fn()
    return str(caught.value)


def main() -> None:
    """Run the checks, in the order in which they were made, and write what came of each."""
    results_folder, folder = map(Path, sys.argv[1:3])
    job = Job(folder)
    results = {}
    for name in sys.argv[3:] or CHECKS:
        started = time.monotonic()
        try:
            results[name] = {"result": CHECKS[name](job)}
        except pytest.skip.Exception as skipped:
            results[name] = {"skipped": str(skipped)}
        except BaseException:  # noqa: BLE001 - told in the results
            results[name] = {"error": traceback.format_exc()}
            if not sys.argv[3:]:
                break
        finally:
            results[name]["seconds"] = round(time.monotonic() - started, 2)
            path = results_folder / f"worker{job.rank}.json"
            new = path.with_suffix(".new")
            new.write_text(json.dumps(results), encoding="utf-8")
            new.replace(path)  # Whoever reads it sees it whole.
