"""Testing: run a function in real worker processes, with real failures.

def train(steps): ...

results = rx.testing.run_workers(2, train, 10)
assert results[0].unwrap() == results[1].unwrap()
"""

from __future__ import annotations

from ._run_workers import WorkerResult as WorkerResult
from ._run_workers import run_workers as run_workers

__all__ = [
    "WorkerResult",
    "run_workers",
]
