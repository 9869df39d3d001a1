"""Three workers: both survivors name the same culprit, whoever of them noticed it first."""

from __future__ import annotations

import pytest

from replicax.cluster import Timeouts

BEACON_S = 1.5
SOON_S = 1.0

FAULTS = {
    "raise": ("exception", SOON_S),
    "kill": ("signal", SOON_S),
    "stop": ("frozen", BEACON_S + SOON_S),
}
"""The kind of each fault, and the seconds until it is raised."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "culprit"), [("raise", 1), ("kill", 0), ("kill", 1), ("stop", 2)]
)
def test_both_survivors_name_the_culprit(job, fault, culprit):
    kind, seconds = FAULTS[fault]
    running = job(
        fault,
        timeouts=Timeouts(start=30, beacon=BEACON_S, shutdown=3),
        size=3,
        ranks=(0, 1, 2),
        CULPRIT=str(culprit),
        STEPS="1000000",
    )
    survivors = [running.workers[rank] for rank in range(3) if rank != culprit]
    running.until_ended(*(worker.rank for worker in survivors))

    began = running.workers[culprit].event("fault")["time"]
    for worker in survivors:
        raised = worker.event("raised")
        assert (raised["kind"], raised["task"]) == (kind, culprit), worker.text
        assert "WorkerFailedError" in raised["classes"]
        assert raised["time"] - began < seconds
        assert worker.code == 1, worker.text
