"""Jobs of several workers: one that goes on through all rows, and one for each row that ends it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from replicax.cluster import Timeouts

HERE = Path(__file__).parent


def conftest_of(folder):
    """The module of another folder of tests."""
    path = HERE.parent / folder / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"conftest_of_{folder}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    """Start the program once, also where several test processes share these tests."""
    with conftest_of("multi_worker").shared_job(tmp_path_factory, HERE / "workers.py") as job:
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


@pytest.fixture(scope="session")
def nursery():
    """Forks workers of `faults/program.py`."""
    nursery = conftest_of("cluster").Nursery(HERE / "faults")
    yield nursery
    nursery.close()


@pytest.fixture
def fail(nursery, tmp_path):
    """`fail(scenario, **options)` starts a job of two workers that runs it."""
    jobs = []

    def start(scenario, *, timeouts=None, **options):
        timeouts = timeouts or Timeouts(start=30, shutdown=3)
        job = conftest_of("cluster").RealJob(nursery, tmp_path, timeouts)
        jobs.append(job)
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        return job.start(scenario, **place, **options)

    yield start
    for job in jobs:
        job.close()
