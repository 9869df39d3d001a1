"""What all workers of a job are told, and what worker 0 says for all."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from typing import Any

import jax.numpy as jnp
import numpy as np
from checks import Job, check

import replicax as rx
from replicax.cli import main
from replicax.doctor._workers import Meeting


@check
def doctor(job: Job) -> Any:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        main(["doctor", "--quick", "--json"])
    assert (said.getvalue() == "") == (job.rank > 0)
    if job.rank == 0:
        report = json.loads(said.getvalue())
        found = {one["id"]: one["status"] for one in report["findings"]}
        assert [len(one["backend"]["devices"]) for one in report["workers"]] == [2, 2]
        assert "examination" not in found
        assert [found[name] for name in ("workers", "workers-differ", "clocks")] == ["ok"] * 3
    meeting = Meeting({})
    meeting._exchange(rx.cluster.runtime())
    measured = [meeting.exchange["group"], *meeting.exchange["pairs"]]
    assert all(one["latency"] > 0 and one["bandwidth"] > 0 for one in measured)
    return [one["is_right"] for one in measured], meeting.exchange["pairs"][0]["devices"]


class Said(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[list[str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            lines = [" ".join(line.split()) for line in record.getMessage().splitlines()]
            self.blocks.append(lines)


@check
def start_up_lines(job: Job) -> Any:
    logger, said = logging.getLogger("replicax"), Said()
    before = logger.level
    logger.addHandler(said)
    logger.setLevel(logging.DEBUG if job.rank else logging.INFO)
    strategy = rx.MultiWorkerMirroredStrategy()
    options = rx.InputOptions(global_batch_size=8)
    batches = iter(strategy.distribute_dataset(np.arange(16.0, dtype=np.float32), options))

    @rx.function
    def total_of_rows(x: Any) -> Any:
        return strategy.run(lambda x: rx.get_replica_context().global_sum(x), args=(x,))

    total = float(np.asarray(jnp.sum(total_of_rows(next(batches)))))
    logger.removeHandler(said)
    logger.setLevel(before)
    if job.rank:
        assert said.blocks == []
    else:
        made, shared, compiled = said.blocks
        assert made[0].endswith(": 4 replicas on CPU")
        assert any(line.startswith("workers 2, with 2 replicas each") for line in made)
        assert "collectives Gloo, over TCP" in made
        assert shared[0] == "Distributed dataset: global batch of 8, 2 rows a replica"
        assert any(line.startswith("plan DATA, 2 pipelines") for line in shared)
        assert compiled[0].startswith("Step `total_of_rows`: traced in ")
    return total
