"""The ring: what is kept of steps, collectives of the eager runner, and what raised."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import pytest

import replicax as rx
from replicax.recording import CAPACITY, RECORDER, Recorder
from replicax.recording._recorder import END, PLACE, RUN, START, SUBJECT


@pytest.fixture(scope="module")
def strategy():
    return rx.MirroredStrategy(["cpu:0", "cpu:1"])


def entries_of(name):
    return [entry for entry in RECORDER.entries() if entry[SUBJECT].name == name]


def test_the_ring_keeps_the_last_entries_and_counts_all():
    recorder = Recorder(capacity=3)
    shared = recorder.subject("meeting", "a", "here", is_shared=True)
    alone = recorder.subject("meeting", "b", "here")
    for subject in (shared, alone, shared, alone, shared):
        with recorder.recorded(subject):
            pass

    kept = recorder.entries()
    assert [(entry[SUBJECT].name, entry[RUN], entry[PLACE]) for entry in kept] == [
        ("a", 1, 1),
        ("b", 1, None),
        ("a", 2, 2),
    ]
    assert all(entry[START] <= entry[END] for entry in kept)


def test_an_entry_is_there_while_it_runs_and_says_that_it_raised():
    recorder = Recorder()
    subject = recorder.subject("meeting", "a", "here", is_shared=True)

    def fail():
        with recorder.recorded(subject):
            assert [entry[END] for entry in recorder.entries()] == [0]
            raise KeyError("a fault")

    with pytest.raises(KeyError):
        fail()
    (entry,) = recorder.entries()
    assert entry[END] < 0
    assert (entry[RUN], entry[PLACE]) == (None, None)


def test_the_entries_of_a_process_are_bounded():
    subject = Recorder().subject("meeting", "a", "here")
    recorder = Recorder()
    for _ in range(CAPACITY + 10):
        with recorder.recorded(subject):
            pass

    assert len(recorder.entries()) == CAPACITY == 1000


@pytest.mark.parametrize("style", ["variables", "functional", "results"])
def test_each_run_of_a_step_is_one_entry_that_knows_its_collectives(strategy, style):
    with strategy.scope():
        w = rx.Variable(jnp.zeros(3), name="w")

    def replica_step(x):
        mean = rx.get_replica_context().all_reduce("mean", x)
        if style == "variables":
            w.assign_add(mean)
        return mean

    def step(x):
        return strategy.run(replica_step, args=(x,))

    step.__name__ = f"a_step_with_{style}"
    run = rx.function(step, donate="x" if style == "functional" else ())
    x = jnp.ones(3)
    began = time.monotonic_ns()
    for _ in range(4):
        x = run(x)
    ended = time.monotonic_ns()

    found = entries_of(step.__name__)
    assert [entry[RUN] for entry in found] == [0, 1, 2, 3]
    assert began < found[0][START] < found[0][END] < found[1][START] < found[3][END] < ended
    subject = found[0][SUBJECT]
    assert "test_recorder.py" in subject.site
    assert (subject.kind, subject.replicas, subject.place) == ("step", (0, 1), None)
    ((collective,),) = subject.collectives
    assert (collective.kind, collective.op, collective.bytes) == ("all_reduce", "MEAN", 12)
    (requested,) = run.requested_collectives(jnp.ones(3))
    assert collective.group_key == requested.group_key
    assert "in replica_step" in collective.site


def test_a_call_that_needs_another_program_leaves_no_entry_of_the_old_one(strategy):
    @rx.function
    def of_any_structure(x):
        return strategy.run(lambda x: jax.tree.map(jnp.square, x), args=(x,))

    of_any_structure((jnp.ones(2), jnp.ones(2)))
    of_any_structure((jnp.ones(2), jnp.ones(2)))
    of_any_structure(jnp.ones(2))

    found = entries_of("of_any_structure")
    assert [(entry[RUN], entry[END] > 0) for entry in found] == [(0, True), (1, True), (0, True)]


def test_a_step_whose_callback_raises_is_marked(strategy):
    def fail(x):
        raise KeyError("a fault")

    @rx.function
    def calls_back(x):
        def replica_step(x):
            jax.debug.callback(fail, x)
            return x

        return strategy.run(replica_step, args=(x,))

    with pytest.raises(KeyError):
        calls_back(jnp.ones(2))

    (entry,) = entries_of("calls_back")
    assert entry[END] < 0
    assert entry[SUBJECT].is_awaited


def test_a_collective_of_the_eager_runner_is_an_entry(strategy):
    def replica_fn(x):
        return rx.get_replica_context().all_reduce(rx.ReduceOp.MAX, {"a": x, "b": x[0]})

    strategy.run(replica_fn, args=(rx.PerReplica([jnp.ones(5), jnp.zeros(5)]),))

    entry = entries_of("all_reduce MAX")[-1]
    ((collective,),) = entry[SUBJECT].collectives
    assert entry[SUBJECT].kind == "collective"
    assert (collective.arrays, collective.bytes) == (2, 24)
    assert "in replica_fn" in collective.site
