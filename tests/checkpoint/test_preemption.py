"""One process that is told to leave: it saves before the next call, and goes on from there."""

from __future__ import annotations

import pickle
import signal
import threading
import time

import numpy as np
import pytest

import replicax as rx
from replicax import errors
from replicax.checkpoint import Checkpoint

STAY = rx.TerminationConfig(exit_fn=lambda: None)


@pytest.fixture
def handler(path):
    """`handler(**options)`: a handler, closed at the end, for a state with a counter."""
    made = []

    def make(config=STAY, **objects):
        for each in made:
            each.close()
        checkpoint = Checkpoint(**(objects or {"state": {"n": 0}}))
        made.append(rx.PreemptionHandler(checkpoint, path, config))
        return made[-1]

    before = signal.getsignal(signal.SIGTERM)
    yield make
    for each in made:
        each.close()
    assert signal.getsignal(signal.SIGTERM) is before


def count(state, at=None):
    """A step; at some number a signal comes in the middle of it."""
    state["n"] += 1
    if state["n"] == at:
        signal.raise_signal(signal.SIGTERM)
    return state["n"]


def again(times, call):
    for _ in range(times):
        call()


def test_h5_without_any_service_it_saves_before_the_call_after_the_signal(handler):
    first = handler(state={"n": 0})
    state = first._checkpoint.state
    assert first.status is None
    with pytest.raises(errors.PreemptedError, match="told to leave") as caught:
        again(9, lambda: first.run(count, state, at=4))
    assert (state["n"], first.total_run_calls, first.is_preempted) == (4, 4, True)
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (type(copy), str(copy)) == (errors.PreemptedError, str(caught.value))

    second = handler(state={"n": 0})
    second.status.assert_consumed()
    assert second._checkpoint.state["n"] == second.total_run_calls == 4
    assert second.run(count, second._checkpoint.state) == 5


def test_the_exit_code_is_42(handler, path):
    first = handler(None)
    first.run(signal.raise_signal, signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        first.save_checkpoint_if_preempted()
    assert caught.value.code == 42
    assert rx.checkpoint.commits(path) == [1]


def test_a_scope_is_a_call(handler):
    first = handler()
    with first.watch_preemption_scope():
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(errors.PreemptedError), first.watch_preemption_scope():
        pytest.fail("it is not entered")
    assert first.total_run_calls == 1


@pytest.mark.parametrize("taking", ["loop", "inside"])
def test_no_batch_is_lost_or_repeated(handler, strategy, taking):
    rows = rx.data.from_arrays(np.arange(22)).shuffle(seed=1).batch(4)
    whole = [seen(strategy, batch) for batch in make_two_epochs(strategy, rows)]
    found = []
    for at in (3, 7, 8, None):  # 7 is the first of the second epoch
        place = Place(strategy, rows)
        resumed = handler(place=place)
        try:
            while place.epochs < 2:
                if taking == "loop":
                    for batch in place.batches:
                        resumed.run(note, found, seen(strategy, batch), at)
                else:
                    step = lambda: note(found, seen(strategy, next(place.batches)), at)  # noqa: E731, B023
                    while place.batches.step < 6:
                        resumed.run(step)
                place.epochs += 1
                place.batches.close()
                place.batches = iter(place.dataset)
        except errors.PreemptedError:
            continue
        finally:
            place.batches.close()

    assert found == whole


class Place:
    """Where a training is, with the iterator in use in an attribute."""

    def __init__(self, strategy, rows):
        self.epochs = 0
        self.dataset = strategy.distribute_dataset(rows)
        self.batches = iter(self.dataset)


def make_two_epochs(strategy, rows):
    dataset = strategy.distribute_dataset(rows)
    for _ in range(2):
        yield from dataset


def seen(strategy, batch):
    return [each.tolist() for each in map(np.asarray, strategy.local_results(batch))]


def note(found, rows, at):
    found.append(rows)
    if len(found) == at:
        signal.raise_signal(signal.SIGTERM)


def test_the_handler_before_is_called_and_put_back(path):
    numbers = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
    try:
        with rx.PreemptionHandler(Checkpoint(n=1), path, STAY) as handler:
            signal.raise_signal(signal.SIGTERM)
            assert handler.is_preempted
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert numbers == [signal.SIGTERM] * 2


def test_a_function_may_tell(handler):
    calls = []

    def watch():
        calls.append(1)
        if len(calls) == 1:
            raise OSError("no answer")  # it is asked again
        return True

    first = handler(rx.TerminationConfig(watch, exit_fn=STAY.exit_fn))
    with pytest.raises(errors.PreemptedError):
        again(2000, lambda: first.run(time.sleep, 0.02))
    assert len(calls) == 2


def test_a_function_of_the_users_saves(handler, path):
    saved = []
    config = rx.TerminationConfig(
        exit_fn=STAY.exit_fn, save_fn=lambda *a, **k: saved.append((a, k))
    )
    first = handler(config)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(errors.PreemptedError):
        first.save_checkpoint_if_preempted(1, name="x")
    assert saved == [((1,), {"name": "x"})]
    assert not path.exists()


def test_a_grace_period_is_used(handler):
    first = handler(rx.TerminationConfig(exit_fn=STAY.exit_fn, grace_period=1.5), state={"n": 0})
    state = first._checkpoint.state

    def step():
        time.sleep(0.01)
        count(state, at=2)

    with pytest.raises(errors.PreemptedError):
        again(100_000, lambda: first.run(step))

    assert state["n"] > 2 + 10  # it has trained on after the first save
    assert rx.checkpoint.commits(first._directory) == [2]
    assert handler(state={"n": 0})._checkpoint.state["n"] == state["n"]


def test_one_at_a_time(handler, path):
    first = handler()
    with pytest.raises(errors.FailedPreconditionError, match="already"):
        rx.PreemptionHandler(Checkpoint(n=1), path)
    first.close()
    first.close()
    rx.PreemptionHandler(Checkpoint(n=1), path).close()


def test_in_another_thread_nothing_would_tell(path):
    caught = []

    def make():
        try:
            rx.PreemptionHandler(Checkpoint(n=1), path)
        except errors.FailedPreconditionError as error:
            caught.append(str(error))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert "main thread" in caught[0]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"grace_period": -1}, errors.InvalidArgumentError),
        ({"grace_period": float("nan")}, errors.InvalidArgumentError),
        ({"exit_fn": 3}, errors.ArgumentTypeError),
    ],
    ids=["negative", "nan", "no function"],
)
def test_configurations_that_are_none(options, error):
    with pytest.raises(error, match="TerminationConfig"):
        rx.TerminationConfig(**options)


def test_a_checkpoint_is_needed(path):
    with pytest.raises(errors.ArgumentTypeError, match="PreemptionHandler got"):
        rx.PreemptionHandler({"n": 1}, path)
