"""A worker that fails between steps gets the others out of theirs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replicax import errors
from replicax.inspection._merged import merged
from replicax.inspection._records import read
from replicax.testing import run_workers

FAILING = Path(__file__).with_name("failing.py")


@pytest.fixture
def failing(monkeypatch):
    """The module beside this one, as a user's own module."""
    spec = importlib.util.spec_from_file_location("failing", FAILING)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "failing", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(110)
def test_the_other_worker_raises_the_exception_of_the_one_that_failed(failing):
    other, culprit = run_workers(2, failing.train, timeout=100)

    assert isinstance(culprit.error, KeyError)
    assert isinstance(other.error, errors.WorkerFailedError), other.error
    assert isinstance(other.error, KeyError)
    assert other.error.origin.task == 1
    assert "a key of the user's" in str(other.error)
    assert not other.timed_out


@pytest.mark.timeout(110)
def test_the_end_of_the_other_worker_does_not_hang(tmp_path):
    """XLA's threads wait for the lost peer for ever; the launcher would have to kill the worker."""
    program = Path(__file__).with_name("fails_in_training.py")
    command = [sys.executable, "-m", "replicax", "run", "--nproc-per-node", "2", str(program)]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "REPLICAX_CPU_DEVICES": "2",
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "WorkerFailedError(ValueError)" in output, output
    assert "killed by the launcher" not in output, output

    (folder,) = tmp_path.glob("replicax-records-*/*")
    assert f"record replicax inspect {folder}" in output
    assert not (folder / "job.json").exists()
    seen = merged(read(folder))
    assert sorted(seen.records) == [0, 1]
    assert seen.failure["message"] == "ValueError: the fault"
    assert seen.parted is None
    assert {pace.name for pace in seen.paces} == {"step"}
    assert seen.records[1].reason == "this worker failed"
    assert any("fails_in_training.py" in frame for frame in seen.records[0].stacks[0]["frames"])
