"""Two workers with two devices each act as one: every check of `program.py`, and what it left."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import replicax as rx

PARTS = sorted(Path(__file__).parent.glob("checks_*.py"))
# A test waits until the workers have come to its check.
pytestmark = pytest.mark.timeout(115)


def checks() -> list[str]:
    """The names of the functions that `@check` marks, without importing them."""
    functions = [
        node
        for part in PARTS
        for node in ast.parse(part.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    ]
    return [
        node.name
        for node in functions
        if any(isinstance(one, ast.Name) and one.id == "check" for one in node.decorator_list)
    ]


@pytest.mark.sampled(1)  # one job makes them all
@pytest.mark.parametrize("name", checks())
def test_on_both_workers(job, name):
    found = job.results(name)
    if all("skipped" in one for one in found):
        pytest.skip(found[0]["skipped"])
    for rank, one in enumerate(found):
        assert "error" not in one, f"worker {rank}:\n{one['error']}"
        assert "result" in one, f"worker {rank} did not come to it:\n{job.output()}"
    assert comparable(found[0]["result"]) == comparable(found[1]["result"])


def comparable(result):
    """Errors are told on each worker in its own words; what they are about is checked there."""
    if isinstance(result, list):
        return [comparable(one) for one in result]
    return "text" if isinstance(result, str) else result


def test_a_checkpoint_of_two_workers_is_restored_in_one_process(job, strategy):
    assert "result" in job.results("a_checkpoint_of_all_workers")[0]
    with strategy.scope():
        w = rx.Variable([0.0, 0.0], name="w")
        total = rx.Variable(0.0, synchronization="on_read", aggregation="sum", name="total")
    state = {"sum": np.zeros(2, np.float32), "epoch": 0}
    checkpoint = rx.checkpoint.Checkpoint(w=w, total=total, state=state)
    checkpoint.restore(job.folder / "all").assert_existing_objects_matched().expect_partial()

    assert np.asarray(w).tolist() == [1, 2]
    assert float(total) == 10
    assert checkpoint.state["sum"].tolist() == [6, 6]
    assert checkpoint.state["epoch"] == 3


def test_weights_of_two_workers_go_on_in_one_process(job, strategy):
    trained = job.results("training_with_variables_and_adam_equals_one_device")[0]["result"]
    with strategy.scope():
        zeros = {name: np.zeros_like(value, np.float32) for name, value in trained.items()}
        weights = {name: rx.Variable(value) for name, value in zeros.items()}
    rx.checkpoint.Checkpoint(weights=weights).restore(job.folder / "adam").assert_consumed()

    for name, value in trained.items():
        np.testing.assert_array_equal(np.asarray(weights[name]), np.float32(value))


def test_both_workers_end_well(job):
    job.results("no check: until all have ended")
    assert job.returncode() == 0, job.output()
