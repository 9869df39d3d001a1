"""What workers run is compared while it runs: where they go apart, all of them raise it.

Real processes: worker 1 of `ordered.py` does something else at its fifth step.
"""

from __future__ import annotations

import pytest

from replicax.cluster import Timeouts

SOON_S = 1.0  # half a second where the machine is not overloaded


def run(job, fault, **options):
    running = job(fault, LOOP="order", MASTER_ADDR="127.0.0.1", MASTER_PORT="1", **options)
    running.until_ended(0, 1)
    return running.workers


def texts(workers):
    """What each worker has raised; none returned a number."""
    found = [worker.event("raised") for worker in workers]
    assert all("CollectiveMismatchError" in one["classes"] for one in found), found
    assert [worker.code for worker in workers] == [1, 1]
    return [one["text"] for one in found]


@pytest.mark.parametrize(
    ("fault", "own"),
    [
        ("meet", "the meeting 'something'"),
        ("swap", "`large`"),
        pytest.param("skip", "`large`", marks=pytest.mark.slow),
        pytest.param("more", "`large`", marks=pytest.mark.slow),
    ],
)
def test_workers_that_go_apart_raise_it_with_the_first_difference(job, fault, own):
    workers = run(job, fault)
    for text in texts(workers):
        assert "The workers have gone apart after" in text
        rows = [line.split(None, 1) for line in text.splitlines() if "ordered.py" in line]
        assert [number for number, _ in rows] == ["0", "1"]
        assert "`step`" in rows[0][1]
        assert own in rows[1][1]
    happened = workers[1].event("fault")["time"]
    if fault in {"skip", "more"}:
        assert max(one.event("raised")["time"] for one in workers) - happened < SOON_S


@pytest.mark.slow
def test_it_is_compared_before_a_checkpoint_is_written(job, tmp_path):
    folder = tmp_path / "checkpoint"
    texts(run(job, "more", CHECKPOINT=str(folder)))
    assert not folder.exists()


@pytest.mark.slow
def test_other_plain_numbers_in_a_later_step_are_told(job):
    for text in texts(run(job, "number")):
        assert "They run one step with arrays of different shapes, or different plain" in text


@pytest.mark.slow
def test_a_worker_that_leaves_early_is_named(job):
    running = job("leave", LOOP="order", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    running.until_ended(0, 1)
    raised = running.workers[0].event("raised")
    assert "WorkerFailedError" in raised["classes"]
    assert (raised["kind"], raised["task"]) == ("exit", 1)


@pytest.mark.slow
def test_a_worker_that_never_comes_is_reported_before_the_time_out(job, caplog):
    timeouts = Timeouts(start=30, collective=4, shutdown=1)
    workers = run(job, "stall", timeouts=timeouts)

    report = next(text for text in caplog.messages if "have waited for others for 2 s" in text)
    assert "`step`" in report
    assert "`large`" in report
    raised = workers[0].event("raised")
    assert "CollectiveTimeoutError" in raised["classes"]
    assert "has run" in raised["text"]
    assert "`large`" in raised["text"]
    kept = "workers wait for others: the last steps are recorded in"
    assert [kept in worker.text for worker in workers] == [True, True]
