"""The job of two workers with two devices each that `workers.py` is the program of."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("workers.py")
JOBS = Path(__file__).parents[1] / "multi_worker" / "conftest.py"


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    """Start the program once, also where several test processes share these tests."""
    spec = importlib.util.spec_from_file_location("jobs", JOBS)
    jobs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(jobs)
    with jobs.shared_job(tmp_path_factory, PROGRAM) as job:
        yield job


@pytest.fixture
def each(job):
    """`each(name)`: what came of a row of `workers.py` on each worker."""

    def results(name):
        found = job.results(name)
        for rank, one in enumerate(found):
            assert "error" not in one, f"worker {rank}:\n{one['error']}"
            assert "result" in one, f"worker {rank} did not come to it:\n{job.output()}"
        return [one["result"] for one in found]

    return results


@pytest.fixture
def both(each):
    """`both(name)`: what came of it, the same on both workers."""

    def result(name):
        first, second = each(name)
        assert first == second
        return first

    return result
