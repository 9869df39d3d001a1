"""Testing: run a function in real worker processes, and compare a step with one device.

def train(steps): ...

results = rx.testing.run_workers(2, train, 10)
assert results[0].unwrap() == results[1].unwrap()

rx.testing.assert_one_device_parity(strategy, train_step, state, dataset)
"""

from __future__ import annotations

from ._parity import assert_one_device_parity as assert_one_device_parity
from ._run_workers import WorkerResult as WorkerResult
from ._run_workers import run_workers as run_workers

__all__ = [
    "WorkerResult",
    "assert_one_device_parity",
    "run_workers",
]
