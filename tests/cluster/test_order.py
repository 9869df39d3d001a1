"""What workers run is compared while it runs: where they go apart, all of them raise it."""

from __future__ import annotations

import pytest

from replicax.cluster import Timeouts

SOON_S = 0.5


def run(job, fault, **options):
    running = job(fault, LOOP="order", MASTER_ADDR="127.0.0.1", MASTER_PORT="1", **options)
    running.until_ended(0, 1)
    return running.workers


def raised(workers):
    for worker in workers:
        print(worker.text)
    return [worker.event("raised") for worker in workers]


@pytest.mark.parametrize("fault", ["", "swap", "skip", "more", "meet", "number", "leave"])
def test_workers_that_go_apart_raise_it(job, fault):
    workers = run(job, fault)
    for worker in workers:
        print(worker.code, worker.text)
