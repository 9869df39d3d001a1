"""What workers ran last: shown while the job runs, written on a signal, and traced."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import jax
from checks import Job, check

import replicax as rx
from replicax import cli, cluster
from replicax.recording import RECORDER


def inspected(*words: Any) -> dict[str, Any]:
    """What `replicax inspect` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        cli.main(["inspect", "--json", *map(str, words)])
    told: dict[str, Any] = json.loads(printed.getvalue())
    return told


def runs_of(told: dict[str, Any], name: str) -> list[list[Any]]:
    """The runs of a step on each worker, place by place."""
    rows = [list(row["workers"].values()) for row in told["rows"]]
    return [[each["run"] for each in row] for row in rows if row[0]["name"] == name]


@check
def a_running_job_shows_what_its_workers_ran_last(job: Job) -> Any:
    def a_recorded_step(x: Any) -> Any:
        return job.strategy.run(lambda x: rx.get_replica_context().all_reduce("mean", x), args=(x,))

    step = rx.function(a_recorded_step)
    step(job.ids)
    with rx.trace(job.folder / "trace.json"):
        for _ in range(3):
            jax.block_until_ready(step(job.ids))
    cluster.gather("traced", None)
    if job.rank == 0:
        for place in (os.environ["REPLICAX_CONTROL"], RECORDER.folder):
            told = inspected(place)
            assert (told["workers"], told["silent"]) == (2, [])
            assert runs_of(told, "a_recorded_step") == [[0, 0], [1, 1], [2, 2], [3, 3]]
            paces = [pace for pace in told["paces"] if pace["name"] == "a_recorded_step"]
            assert [(pace["worker"], pace["runs"]) for pace in paces] == [(0, 4), (1, 4)]
            frames = [told["records"][rank]["stacks"][0]["frames"] for rank in "01"]
            assert all("checks_recording.py" in str(each) for each in frames)
        files = [job.folder / f"trace.worker-{rank}.json" for rank in range(2)]
        told = inspected(*files, "--trace", job.folder / "both.json")
        assert told["parted"] is None
        assert runs_of(told, "a_recorded_step") == [[1, 1], [2, 2], [3, 3]]
        events = json.loads((job.folder / "both.json").read_text())["traceEvents"]
        rows = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
        assert {(0, 10), (0, 11), (1, 12), (1, 13)} < rows
    cluster.gather("looked at", None)  # Worker 1 is there until then.
    return None


@check
def a_worker_of_the_launcher_writes_its_record_on_a_signal(job: Job) -> Any:
    path = Path(RECORDER.folder or "", f"worker-{job.rank}.json")
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0)  # Its handler runs at the next line of Python.
    record = json.loads(path.read_text())
    assert (record["worker"], record["workers"], record["reason"]) == (job.rank, 2, "SIGUSR1")
    path.unlink()
    return None
