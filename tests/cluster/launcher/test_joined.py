"""Workers that join the job: the launcher hears of a failure from them, before they exit."""

from __future__ import annotations

import pathlib
import sys

import pytest

import replicax as rx
from replicax.cluster import LaunchOptions, launch

SOURCE = pathlib.Path(__file__).resolve().parents[3] / "src"
PROGRAM = """
import json, os, sys, time
from pathlib import Path
import replicax as rx
from replicax.cluster import Runtime

rank = int(os.environ["RANK"])
try:
    job = Runtime.join(
        rank,
        int(os.environ["WORLD_SIZE"]),
        os.environ["REPLICAX_CONTROL"],
        os.environ["REPLICAX_COORDINATOR"],
        Path(os.environ["REPLICAX_SECRET_FILE"]).read_bytes(),
        rx.Timeouts.from_json(json.loads(os.environ["REPLICAX_TIMEOUTS"])),
    )
    if rank == 1:
        job.progress(3)
        raise KeyError("boom")
    with job.guard():
        time.sleep(40)
except KeyError:
    if rank == 1:
        raise
    print("heard of it")
    sys.exit(75)
"""


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_the_box_has_the_step_and_the_traceback_of_the_worker_that_raised(
    tmp_path, capfd, monkeypatch
):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    command = [sys.executable, "-u", str(program)]

    # Generous: the worker that hears of it is not to be killed on a busy host.
    timeouts = rx.Timeouts(start=60, shutdown=30)
    code = launch(LaunchOptions(command=command, workers=2, timeouts=timeouts))

    out, err = capfd.readouterr()
    box = err[err.index("╭") :]
    assert code == 1
    said = [line for line in out.splitlines() if "Gloo" not in line]
    assert said == ["[0] heard of it"]
    assert "first failure: worker 1 of 2" in box
    assert "exception: KeyError: 'boom'" in box
    assert "step   3" in box
    assert "worker 0: exit code 75" in box, err
    assert "program.py" in box[box.index("Traceback") :]
