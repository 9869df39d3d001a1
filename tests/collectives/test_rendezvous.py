from __future__ import annotations

import contextvars
import dataclasses
import logging
import os
import re
import signal
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax.collectives import Entry, Request, run_replicas
from replicax.errors import (
    CallSite,
    CollectiveMismatchError,
    ContextError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
)

ENTRY = Entry(1, 100, "all_reduce", "SUM", ("int32",), ((),))


def request(payload=None, **changes):
    frame = sys._getframe(1)
    site = CallSite(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    return Request(dataclasses.replace(ENTRY, call_site=site, **changes), payload)


def total(requests):
    return [sum(one.payload for one in requests)] * len(requests)


def replica_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("replicax-replica-")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Stricter than the leak police: threads have ended when the call returns, without grace."""
    yield
    assert replica_threads() == []


# --- what it does ------------------------------------------------------------------------------


def test_answers_and_results_come_back_in_replica_order():
    def body(meet):
        first = meet(request(meet.replica))
        return first, meet(request(10 * meet.replica)), meet.num_replicas

    assert run_replicas([body] * 4, total) == [(6, 60, 4)] * 4


def test_each_replica_gets_its_own_answer():
    def serve(requests):
        return [one.payload * 2 for one in requests]

    assert run_replicas([lambda meet: meet(request(meet.replica))] * 3, serve) == [0, 2, 4]


def test_no_meeting_at_all():
    assert run_replicas([lambda meet: meet.replica] * 3, total) == [0, 1, 2]
    assert run_replicas([lambda _: None], total) == [None]


def test_replicas_take_turns_in_order_and_switch_only_at_meetings():
    seen, running = [], []

    def body(meet):
        for step in range(3):
            running.append(meet.replica)
            time.sleep(0.002)  # Another replica would run here if it could.
            seen.append((step, meet.replica))
            assert running.pop() == meet.replica
            assert running == []
            meet(request(0))

    run_replicas([body] * 3, total)
    assert seen == [(step, replica) for step in range(3) for replica in range(3)]


def test_serve_runs_on_the_calling_thread_and_bodies_on_named_daemons():
    caller, seen = threading.current_thread(), []

    def body(meet):
        thread = threading.current_thread()
        seen.append((thread.name, thread.daemon))
        meet(request(0))

    def serve(requests):
        assert threading.current_thread() is caller
        return total(requests)

    run_replicas([body] * 2, serve)
    assert seen == [("replicax-replica-0", True), ("replicax-replica-1", True)]


def test_each_body_runs_in_a_copy_of_the_callers_context():
    variable = contextvars.ContextVar("variable", default="default")
    token = variable.set("caller's")

    def body(meet):
        before = variable.get()
        variable.set(f"of {meet.replica}")
        meet(request(0))
        return before, variable.get()

    try:
        results = run_replicas([body] * 2, total)
        assert results == [("caller's", "of 0"), ("caller's", "of 1")]
        assert variable.get() == "caller's"
    finally:
        variable.reset(token)


def test_runs_may_be_nested():
    def inner(meet):
        return meet(request(1))

    def outer(meet):
        own = run_replicas([inner] * 2, total)[0]
        return meet(request(own))

    assert run_replicas([outer] * 3, total) == [6, 6, 6]


@pytest.mark.parametrize(("bodies", "names"), [(0, None), (2, ["a"])])
def test_numbers_must_fit(bodies, names):
    with pytest.raises(InvalidArgumentError, match=f"{bodies} replica functions"):
        run_replicas([lambda _: None] * bodies, total, names=names)


def test_many_meetings():
    def body(meet):
        return sum(meet(request(1)) for _ in range(300))

    assert run_replicas([body] * 8, total) == [2400] * 8
    assert run_replicas([body] * 2, total, timeout_seconds=30) == [600] * 2


# --- replicas that disagree ----------------------------------------------------------------------


def test_different_ops_are_shown_in_a_table():
    def body(meet):
        meet(request(0))
        meet(request(0, op="MEAN" if meet.replica == 1 else "SUM"))

    with pytest.raises(CollectiveMismatchError) as caught:
        run_replicas([body] * 3, total, names=["worker 0", "worker 1", "worker 2"])
    text = str(caught.value)
    assert "disagree on collective 2" in text
    rows = [line.split() for line in text.splitlines() if re.match(r"  worker \d", line)]
    assert [row[:4] for row in rows] == [
        ["worker", "0", "all_reduce", "SUM"],
        ["worker", "1", "all_reduce", "MEAN"],
        ["worker", "2", "all_reduce", "SUM"],
    ]
    assert text.count("in body") == 3


def test_different_kinds_are_refused_and_different_shapes_left_to_serve():
    def kinds(meet):
        meet(request(0, kind="all_gather" if meet.replica else "all_reduce", op=None))

    with pytest.raises(CollectiveMismatchError, match="all_gather"):
        run_replicas([kinds] * 2, total)

    def shapes(meet):
        return meet(request(1, shapes=((meet.replica,),)))

    assert run_replicas([shapes] * 2, total) == [2, 2]


@pytest.mark.parametrize("quitter", [0, 1, 2])
def test_unequal_numbers_name_who_finished_and_who_waits(quitter):
    def body(meet):
        meet(request(0))
        if meet.replica != quitter:
            wait_here(meet)

    def wait_here(meet):
        meet(request(0))

    with pytest.raises(CollectiveMismatchError, match=f"replica {quitter} finished") as caught:
        run_replicas([body] * 3, total)
    lines = str(caught.value).splitlines()
    for replica in range(3):
        (row,) = [line.split() for line in lines if line.startswith(f"  replica {replica}")]
        expected = ["finished", "1"] if replica == quitter else ["waiting", "2"]
        assert row[2:4] == expected
        assert row[-1] == ("body" if replica == quitter else "wait_here")


# --- failures ------------------------------------------------------------------------------------


class OwnError(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


@pytest.mark.parametrize("culprit", [0, 1, 3])
@pytest.mark.parametrize("meetings", [0, 2])
def test_a_users_error_comes_out_as_itself(culprit, meetings):
    thrown = OwnError(1, 2)
    cleaned = []

    def body(meet):
        try:
            for _ in range(meetings):
                meet(request(0))
            if meet.replica == culprit:
                fail()
            meet(request(0))
        finally:
            cleaned.append(meet.replica)

    def fail():
        raise thrown

    with pytest.raises(OwnError) as caught:
        run_replicas([body] * 4, total)

    assert caught.value is thrown
    assert caught.traceback[-1].name == "fail"
    (note,) = thrown.__notes__
    assert note.startswith(f"raised on replica {culprit} of 4 (at ")
    assert note.endswith(" in fail)")
    # With a first meeting all have begun; without, those behind the culprit never do.
    assert sorted(cleaned) == list(range(4 if meetings else culprit + 1))


def test_the_same_error_raised_twice_gets_one_note():
    thrown = ValueError("again")

    def body(_):
        raise thrown

    for _ in range(2):
        with pytest.raises(ValueError, match="again"):
            run_replicas([body] * 2, total)
    assert len(thrown.__notes__) == 1


def test_system_exit_and_stop_iteration_come_out_too():
    def leave(_):
        raise SystemExit(3)

    def stop(_):
        raise StopIteration

    with pytest.raises(SystemExit, match="3"):
        run_replicas([leave], total)
    with pytest.raises(StopIteration):
        run_replicas([stop] * 2, total)


def test_stopped_replicas_pass_except_exception_and_may_not_meet_again():
    seen = []

    def body(meet):
        if meet.replica == 1:
            raise ValueError("first")
        try:
            meet(request(0))
        except Exception:  # noqa: BLE001
            seen.append("swallowed")
        finally:
            meet(request(0))  # Ends the clean-up.
            seen.append("met")

    with pytest.raises(ValueError, match="first"):
        run_replicas([body] * 2, total)
    assert seen == []


def test_an_error_while_stopping_is_noted_and_does_not_hide_the_first():
    def body(meet):
        if meet.replica == 1:
            raise ValueError("first")
        try:
            meet(request(0))
        finally:
            raise KeyError("second")

    with pytest.raises(ValueError, match="first") as caught:
        run_replicas([body] * 2, total)
    assert "while stopping, replica 0 raised KeyError: 'second'" in caught.value.__notes__


def test_an_error_of_serve_stops_all():
    cleaned = []

    def body(meet):
        try:
            meet(request(0))
        finally:
            cleaned.append(meet.replica)

    def serve(_):
        raise LookupError("of serve")

    with pytest.raises(LookupError, match="of serve"):
        run_replicas([body] * 3, serve)
    assert cleaned == [0, 1, 2]


def test_serve_must_answer_every_replica():
    with pytest.raises(InternalError, match="1 results for 2 replicas"):
        run_replicas([lambda meet: meet(request(0))] * 2, lambda _: [0])


def test_a_request_must_be_one():
    with pytest.raises(InternalError, match="no `Request`"):
        run_replicas([lambda meet: meet(3)], total)


PLANS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=5)


def outcome_of(plans):
    """What must come of replicas that meet so often, and then raise or return."""
    for turn in range(5):
        for replica, (meetings, raises) in enumerate(plans):
            if meetings == turn and raises:
                return replica
        finished = [meetings <= turn for meetings, _ in plans]
        if any(finished):
            return "done" if all(finished) else "mismatch"
    return None


@given(PLANS, st.sampled_from([None, 20.0]))
def test_any_mix_of_meetings_and_failures_ends_as_it_must(plans, timeout_seconds):
    def body(meet):
        meetings, raises = plans[meet.replica]
        for _ in range(meetings):
            meet(request(0))
        if raises:
            raise OwnError(meet.replica, meetings)

    try:
        run_replicas([body] * len(plans), total, timeout_seconds=timeout_seconds)
        outcome = "done"
    except CollectiveMismatchError:
        outcome = "mismatch"
    except OwnError as error:
        outcome = error.args[0]
    assert outcome == outcome_of(plans)
    assert replica_threads() == []


# --- time ----------------------------------------------------------------------------------------


def test_a_stuck_replica_is_reported_and_ends_at_its_next_meeting():
    release, ended = threading.Event(), []

    def stuck(meet):
        release.wait()
        try:
            meet(request(0))
        finally:
            ended.append(meet.replica)

    def body(meet):
        meet(request(0))
        if meet.replica == 1:
            stuck(meet)
        meet(request(0))

    started = time.monotonic()
    with pytest.raises(DeadlineExceededError) as caught:
        run_replicas([body] * 3, total, timeout_seconds=0.3)
    assert 0.3 <= time.monotonic() - started < 5

    text = str(caught.value)
    assert text.startswith("Replica 1 did not arrive at collective 2 of this run within 0.3 s.")
    rows = [line.split() for line in text.splitlines() if re.match(r"  replica \d", line)]
    assert [" ".join(row[2:-3]) for row in rows] == [
        "arrived 2",
        "did not arrive 1",
        "had no turn yet 1",
    ]
    assert rows[0][-1] == "body"
    assert rows[1][-1] == "stuck"  # Where it is now.

    assert replica_threads() == ["replicax-replica-1"]
    release.set()
    deadline = time.monotonic() + 5
    while replica_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == [1]


def test_slow_replicas_within_the_time_are_fine():
    """The time is for one turn, not for the whole run."""

    def body(meet):
        for _ in range(4):
            time.sleep(0.05)
            meet(request(0))
        return meet.replica

    assert run_replicas([body] * 4, total, timeout_seconds=0.5) == [0, 1, 2, 3]


def interrupt_soon(after):
    """Ctrl-C for this process, as soon as the event is set."""

    def send():
        after.wait(10)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.fixture
def ctrl_c():
    """Python's own answer to Ctrl-C, which a process that was started in the background lacks."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stops_a_replica_in_the_middle_of_a_loop(ctrl_c):
    busy, cleaned = threading.Event(), []

    def body(meet):
        try:
            if meet.replica == 1:
                busy.set()
                while True:
                    time.sleep(0.001)
            meet(request(0))
        finally:
            cleaned.append(meet.replica)

    sender = interrupt_soon(busy)
    with pytest.raises(KeyboardInterrupt):
        run_replicas([body] * 3, total)
    sender.join()
    assert cleaned == [1, 0]  # Replica 2 has never begun.


def test_ctrl_c_inside_serve_stops_all(ctrl_c):
    serving, cleaned = threading.Event(), []

    def body(meet):
        try:
            meet(request(0))
        finally:
            cleaned.append(meet.replica)

    def serve(_):
        serving.set()
        time.sleep(10)

    sender = interrupt_soon(serving)
    with pytest.raises(KeyboardInterrupt):
        run_replicas([body] * 2, serve)
    sender.join()
    assert cleaned == [0, 1]


# --- wrong threads -------------------------------------------------------------------------------


def test_meet_after_the_run_has_ended():
    kept = []
    run_replicas([kept.append] * 2, total)
    with pytest.raises(ContextError, match="replica 0 was called after its run had ended"):
        kept[0](request(0))


def test_meet_from_another_thread():
    def body(meet):
        caught = []

        def call():
            try:
                meet(request(0))
            except ContextError as error:
                caught.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return caught[0]

    (text,) = run_replicas([body], total)
    assert text.startswith("A collective of replica 0 was called from another thread.")


def test_slow_cleanup_is_logged_and_not_waited_for_for_ever(caplog):
    release = threading.Event()

    def body(meet):
        if meet.replica == 1:
            raise ValueError("first")
        try:
            meet(request(0))
        finally:
            release.wait(10)

    with (
        caplog.at_level(logging.WARNING, "replicax.collectives"),
        pytest.raises(ValueError, match="first"),
    ):
        run_replicas([body] * 2, total, timeout_seconds=0.2)
    assert "replica 0 is still inside a call at" in caplog.text
    release.set()
    deadline = time.monotonic() + 5
    while replica_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
