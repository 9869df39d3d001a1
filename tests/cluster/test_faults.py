"""What each fault of a worker, or of the master, does to the workers that survive it.

Real processes, a jitted mean over the workers, real kills. Each survivor raises the named
exception and ends by itself, not by a signal.
"""

from __future__ import annotations

import re
import signal

import pytest

from replicax.cluster import MasterProcess, Timeouts, look_at_job
from replicax.cluster._coordination import free_port
from replicax.inspection._records import read

SOON_S = 1.0
BEACON_S = 1.5
STALL_S = 1.0


def check(job, kind, *, within, culprit=1, survivors=(0,)):
    """Each survivor has raised the failure of the culprit in time, and left by itself."""
    job.until_ended(*survivors)
    fault = job.fault_time if culprit is None else job.workers[culprit].event("fault")["time"]
    for rank in survivors:
        worker = job.workers[rank]
        raised = worker.event("raised")
        assert (raised["kind"], raised["task"]) == (kind, culprit), worker.text
        assert "WorkerFailedError" in raised["classes"]
        assert raised["time"] - fault < within
        assert worker.code == 1, worker.text
    return job.workers[survivors[0]].event("raised")


def test_without_a_fault_all_end_well(job):
    running = job()
    running.until_ended(0, 1)

    assert [worker.code for worker in running.workers] == [0, 0]
    assert [worker.event("result")["value"] for worker in running.workers] == [0.5, 0.5]
    assert running.master.first_failure is None
    assert running.master.all_left()


def test_a_peer_raises(job):
    running = job("raise")

    raised = check(running, "exception", within=SOON_S)

    assert "KeyError" in raised["classes"]
    assert raised["step"] == 5
    assert "in go_wrong" in raised["remote"]
    running.until_ended(1)
    assert running.workers[1].code == 1


def test_a_peer_is_killed(job):
    running = job("kill")

    raised = check(running, "signal", within=SOON_S)

    assert "SIGKILL" in raised["text"]
    assert running.master.first_failure.kind == "signal"


def test_a_peer_freezes(job, secret, tmp_path):
    timeouts = Timeouts(start=30, beacon=BEACON_S, shutdown=3)
    running = job("stop", timeouts=timeouts)
    running.until(lambda: running.workers[1].has("fault"))
    look = look_at_job(running.master.address, secret)  # While it is frozen.

    check(running, "frozen", within=BEACON_S + SOON_S)
    assert look.silent == (1,)
    assert any("in train" in frame for frame in look.records[0]["stacks"][0]["frames"])
    (record,) = read(tmp_path / "records")
    assert (record.worker, record.failure["kind"]) == (0, "frozen")
    assert [state["worker"] for state in record.states] == [0, 1]
    main = next(stack for stack in record.stacks if stack["is_main"])
    assert any("in train" in frame for frame in main["frames"])
    raised = running.workers[0].event("raised")
    assert f"replicax inspect {tmp_path / 'records'}" in raised["text"]


def test_a_peer_stands_still_in_python(job):
    timeouts = Timeouts(start=30, stall=STALL_S, shutdown=3)

    running = job("stall", timeouts=timeouts)

    check(running, "stall", within=STALL_S + 2 * SOON_S, survivors=(0, 1))


def test_a_peer_leaves_early_with_code_0(job):
    running = job("exit")

    raised = check(running, "exit", within=2 * SOON_S)

    assert "left the job" in raised["text"]


def test_a_peer_never_comes(job):
    timeouts = Timeouts(start=1.5, shutdown=3)
    running = job(timeouts=timeouts, ranks=(0,), ADDRESSES="one.example:1,two.example:2")
    running.until_ended(0)
    raised = running.workers[0].event("raised")

    assert (raised["kind"], raised["task"], running.workers[0].code) == ("never came", 1, 1)
    assert "StartupError" in raised["classes"]
    assert "worker 1 at two.example:2" in raised["text"]
    assert raised["time"] - running.workers[0].event("born")["time"] < 1.5 + SOON_S


def test_a_late_peer_is_waited_for(job):
    running = job(own={1: {"LATE": "1"}}, STEPS="3")
    running.until_ended(0, 1)

    assert [worker.code for worker in running.workers] == [0, 0]


def test_the_master_is_killed(job, secret):
    timeouts = Timeouts(start=30, shutdown=3)
    master = MasterProcess(world_size=2, secret=secret, timeouts=timeouts)
    try:
        running = job(timeouts=timeouts, master=master, STEPS="100000")
        running.until(lambda: all(worker.has("stepping") for worker in running.workers))
        running.kill_master(signal.SIGKILL)

        raised = check(running, "lost", within=SOON_S, culprit=None, survivors=(0, 1))
    finally:
        master.stop()

    assert "The master failed" in raised["text"]


@pytest.fixture
def address():
    """Where worker 0 is to start the master."""
    return f"127.0.0.1:{free_port('127.0.0.1')}"


def test_worker_0_starts_the_master_where_nothing_of_ours_launches(job, address):
    running = job(without_launcher=address)
    running.until_ended(0, 1)

    assert [worker.code for worker in running.workers] == [0, 0]
    assert [worker.event("result")["value"] for worker in running.workers] == [0.5, 0.5]


# --- rarer ones --------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("size", ["2", "1000000"], ids=["inline", "in the middle of 4 MB"])
@pytest.mark.parametrize(("fault", "kind"), [("raise", "exception"), ("kill", "signal")])
def test_whatever_the_size_of_the_arrays(job, size, fault, kind):
    check(job(fault, SIZE=size), kind, within=SOON_S)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "kind"), [("kill", "signal"), ("stop", "frozen")])
def test_a_loop_in_a_thread_of_its_own(job, fault, kind):
    timeouts = Timeouts(start=30, beacon=BEACON_S, shutdown=3)

    check(job(fault, timeouts=timeouts, LOOP="thread"), kind, within=BEACON_S + 2 * SOON_S)


@pytest.mark.slow
def test_a_loop_without_guards_ends_with_the_name_all_the_same(job):
    running = job("kill", LOOP="unguarded", SIZE="2")
    running.until_ended(0)

    assert running.workers[0].code == 1
    assert "WorkerFailedError: Worker 1 failed (signal" in running.workers[0].text
    assert running.master.first_failure.rank == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"), [("silent exit", "code 0"), ("exit code", "exit code 3")]
)
def test_a_peer_ends_without_a_word(job, fault, words):
    raised = check(job(fault), "exit", within=2 * SOON_S)

    assert words in raised["text"] or "left the job" in raised["text"]


@pytest.mark.slow
def test_a_peer_raises_behind_a_hook_of_its_own(job):
    raised = check(job("raise", HOOK="1"), "exception", within=SOON_S)

    assert "KeyError" in raised["classes"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["connecting", "devices", "collective"])
def test_a_peer_is_killed_while_jax_waits_for_it_at_the_start(job, where):
    check(job(where), "signal", within=2 * SOON_S)


@pytest.mark.slow
def test_a_peer_is_killed_before_the_first_collective(job):
    check(job("before"), "signal", within=2 * SOON_S)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raise", "exit"])
def test_a_peer_is_gone_at_the_first_collective(job, fault):
    kind = {"raise": "exception", "exit": "exit"}[fault]

    check(job(fault, FAULT_STEP="0"), kind, within=3 * SOON_S)


@pytest.mark.slow
def test_a_peer_stands_still_and_nobody_asked(job):
    # Without `stall` the engine's own limit ends the wait; nobody has failed, but one is late.
    timeouts = Timeouts(start=30, collective=2, shutdown=3)
    running = job("stall", timeouts=timeouts)
    running.until_ended(0)
    raised = running.workers[0].event("raised")

    assert "CollectiveTimeoutError" in raised["classes"]
    assert re.search(r"^ *0 +5 .* waiting .*\n *1 +5 .* in Python", raised["text"], re.MULTILINE)
    running.until_ended(1)
    assert [worker.code for worker in running.workers] == [1, 1]
    assert "CollectiveTimeoutError" in running.workers[1].event("raised")["classes"]


@pytest.mark.slow
def test_a_survivor_in_other_code_is_told_after_a_while(job):
    timeouts = Timeouts(start=30, shutdown=1)

    check(job("raise", timeouts=timeouts, SURVIVOR="busy"), "exception", within=1 + SOON_S)


@pytest.mark.slow
def test_a_survivor_that_hears_nothing_ends_itself(job):
    timeouts = Timeouts(start=30, shutdown=1)
    running = job("raise", timeouts=timeouts, SURVIVOR="deaf")
    running.until_ended(0)

    assert running.workers[0].code == 1
    assert "The main thread did not get out of its wait in time." in running.workers[0].text
    assert "Worker 1 failed (exception, step 5): KeyError: 'boom'" in running.workers[0].text


@pytest.mark.slow
def test_a_forked_process_is_no_worker(job):
    running = job(SURVIVOR="fork")
    running.until_ended(0, 1)

    assert [worker.code for worker in running.workers] == [0, 0]
    assert (running.workers[0].event("forked")["code"], running.master.first_failure) == (0, None)


@pytest.mark.slow
def test_the_worker_that_started_the_master_survives(job, address):
    running = job("kill", without_launcher=address)

    raised = check(running, "lost", within=SOON_S)

    assert "without a word" in raised["text"]
    assert "Timeout" not in running.workers[0].text  # the master does not hold its end up


@pytest.mark.slow
def test_the_worker_that_started_the_master_is_killed(job, address):
    running = job("kill", without_launcher=address, CULPRIT="0")

    check(running, "lost", within=SOON_S, culprit=0, survivors=(1,))


@pytest.mark.slow
def test_the_master_freezes(job, secret):
    timeouts = Timeouts(start=30, beacon=BEACON_S, shutdown=3)
    master = MasterProcess(world_size=2, secret=secret, timeouts=timeouts)
    try:
        running = job(timeouts=timeouts, master=master, STEPS="100000")
        running.until(lambda: all(worker.has("stepping") for worker in running.workers))
        running.kill_master(signal.SIGSTOP)

        check(running, "frozen", within=BEACON_S + SOON_S, culprit=None, survivors=(0, 1))
    finally:
        running.kill_master(signal.SIGKILL)
        master.stop()


@pytest.mark.slow
@pytest.mark.parametrize("size", ["2", "1000000"], ids=["inline", "in the middle of 4 MB"])
def test_the_service_of_jax_is_killed(job, size):
    timeouts = Timeouts(start=30, shutdown=3)
    # After a second or so: the engine's sockets are looked up in the service.
    running = job(timeouts=timeouts, STEPS="100000", SIZE=size, FAULT_STEP="400")
    running.until(lambda: all(worker.has("stepping") for worker in running.workers))
    running.fault_time = running.now()
    running.master._service._process.kill()

    # That they raise is the point: jax would have aborted them.
    raised = check(running, "lost", within=10 * SOON_S, culprit=None, survivors=(0, 1))

    assert "coordination service" in raised["text"]
