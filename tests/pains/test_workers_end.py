"""Pains of two workers whose job ends, or does not start: groups F, G and H of the known pains.

Each test is named after its report. Real processes, which `faults/program.py` is the program of.
"""

from __future__ import annotations

import json
import re

import pytest

from replicax.cluster import Master, Timeouts

SOON_S = 1.0


def ended(job, *, codes=(1, 1)):
    """What each worker raised, once both have ended by themselves."""
    job.until_ended(0, 1)
    assert tuple(worker.code for worker in job.workers) == codes, job.workers[0].text
    return [worker.event("raised") for worker in job.workers if worker.has("raised")]


@pytest.mark.slow
def test_f1_a_worker_that_stands_still_is_named_on_both(fail):
    job = fail("stall", timeouts=Timeouts(start=30, stall=1, shutdown=3))

    for raised in ended(job):
        assert (raised["kind"], raised["task"]) == ("stall", 1)
        assert "Worker 1" in raised["text"]


@pytest.mark.slow
def test_f10_a_collective_without_one_worker_tells_where_each_is(fail):
    job = fail("stall", timeouts=Timeouts(start=30, collective=2, shutdown=3))

    for raised in ended(job):
        assert "CollectiveTimeoutError" in raised["classes"]
        rows = re.findall(r"^ *(\d) .*(waiting|in Python)", raised["text"], re.MULTILINE)
        assert rows[:2] == [("0", "waiting"), ("1", "in Python")]


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_f8_a_slow_first_step_is_no_failure(fail):
    """Gloo alone gives up after 30 s, whatever it is told."""
    job = fail("slow_first_step", timeouts=Timeouts(start=60, collective=120, shutdown=3))
    job.until(lambda: all(worker.code is not None for worker in job.workers), 100)

    assert [worker.code for worker in job.workers] == [0, 0], job.workers[0].text
    assert [worker.event("result")["value"] for worker in job.workers] == [2, 2]


def test_f12_a_row_that_cannot_be_read_is_told_on_all(fail):
    job = fail("bad_row")

    ended(job)
    assert [("row 37 is broken" in worker.text) for worker in job.workers] == [True, True]
    assert "WorkerFailedError(ValueError): Worker 1 failed" in job.workers[0].text


def test_g2_a_peer_that_never_comes_is_named_with_its_address(fail):
    workers = {"worker": ["127.0.0.1:1111", "127.0.0.1:2222"]}
    cluster = json.dumps({"cluster": workers, "task": {"type": "worker", "index": 0}})
    timeouts = Timeouts(start=1.5, shutdown=3)
    job = fail("exception", timeouts=timeouts, ranks=(0,), TF_CONFIG=cluster)
    job.until_ended(0)

    raised = job.workers[0].event("raised")
    assert "StartupError" in raised["classes"]
    assert "worker 1 at 127.0.0.1:2222" in raised["text"]
    assert job.workers[0].code == 1


def test_g5_devices_that_were_used_before_are_an_error_with_the_line_to_move(fail):
    job = fail("devices_first")

    for raised in ended(job):
        assert "DevicesStartedError" in raised["classes"]
        assert re.search(
            r"program\.py:\d+ in devices_first|before jax\.devices\(\)", raised["text"]
        )


def test_g6_fewer_devices_than_expected_are_an_error(fail):
    job = fail("exception", DEVICES="2", own={1: {"DEVICES": "1"}})

    for raised in ended(job):
        assert "StartupError" in raised["classes"]
        assert re.search(r"^ *0 +cpu +2 +3 +0$", raised["text"], re.MULTILINE)
        assert re.search(r"^ *1 +cpu +1 +3 +1$", raised["text"], re.MULTILINE)


@pytest.mark.slow
def test_g9_20_clusters_one_after_the_other():
    for _ in range(20):
        master = Master(world_size=2, secret=b"the secret of a test", timeouts=Timeouts(shutdown=1))
        master.start()
        assert master.address != master.coordinator_address
        master.stop()


@pytest.mark.slow
def test_g11_an_engine_that_is_not_there_is_an_error_with_the_others(fail):
    job = fail("exception", ENGINE="none")

    for raised in ended(job):
        assert "StartupError" in raised["classes"]
        assert "gloo" in raised["text"]


def test_h1_an_exception_of_a_worker_ends_the_other(fail):
    job = fail("exception")

    (raised,) = ended(job)
    fault = job.workers[1].event("fault")["time"]
    assert {"WorkerFailedError", "KeyError"} <= set(raised["classes"])
    assert raised["task"] == 1
    assert "boom" in raised["text"]
    assert raised["time"] - fault < 10 * SOON_S  # where nobody tells, it takes over a minute


@pytest.mark.slow
def test_h2_a_worker_that_is_done_2_s_before_the_other(fail):
    job = fail("finishes_early")

    assert ended(job, codes=(0, 0)) == []
    done, left = job.workers[0].event("done"), job.workers[1].event("result")
    assert done["time"] - left["time"] > 1
