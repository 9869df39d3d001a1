"""A run that goes on, anywhere and on other replicas, sees the rows that remain, once each."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicax as rx
from replicax.checkpoint import Checkpoint
from replicax.input import DistributedDataset, plan_input

EPOCHS = 2


@functools.cache
def strategy_of(replicas):
    return rx.MirroredStrategy(jax.devices()[:replicas])


def shuffled(count=11, batch=4, seed=0):
    return rx.data.from_arrays(np.arange(count)).shuffle(seed=seed).batch(batch)


def repeated():
    """Batches that hold rows of both epochs, as one pass."""
    return rx.data.from_arrays(np.arange(11)).shuffle(seed=5).repeat(EPOCHS).batch(4)


def pipelines_of(dataset, pipelines, replicas, **options):
    """The dataset as each of several processes would distribute it."""
    options = rx.InputOptions(**options)
    plans = [plan_input(dataset, replicas, options, pipelines, i) for i in range(pipelines)]
    mesh = strategy_of(replicas).replica_mesh
    return [DistributedDataset(plan, mesh, options, plan) for plan in plans]


def real_rows(batch):
    """The rows of one pipeline's step, in order."""
    counts = [batch.stacked.shape[1]] * len(batch.stacked) if batch.rows is None else batch.rows
    return [
        row
        for part, count in zip(np.asarray(batch.stacked), np.asarray(counts), strict=True)
        for row in part[:count].tolist()
    ]


def union(batches):
    """The rows of each step over all pipelines, which take every step together."""
    return [
        [row for batch in step for row in real_rows(batch)] for step in zip(*batches, strict=True)
    ]


def states_and_rows(datasets, epochs):
    """The state at each place of a run, with the number of steps before it; and all steps."""
    states, steps = [], []
    for _ in range(epochs):
        iterators = [iter(dataset) for dataset in datasets]
        while True:
            (state, *others) = [one.get_state() for one in iterators]
            assert all(other == state for other in others)  # one state is enough for all
            states.append((len(steps), state))
            taken = [one.get_next_as_optional() for one in iterators]
            if not any(one.has_value() for one in taken):
                break
            steps += union([[one.get_value()] for one in taken])
    return states, steps


def remaining(datasets, state, epochs):
    """The steps of a run that goes on at a state, in new iterators."""
    iterators = [iter(dataset) for dataset in datasets]
    for one in iterators:
        one.set_state(state)
    steps = union(iterators)
    for _ in range(state["epoch"] + 1, epochs):
        steps += union(datasets)
    return steps


# --- at every step, on other replicas and pipelines ------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    ("make", "epochs"), [(shuffled, EPOCHS), (repeated, 1)], ids=["passes", "repeated"]
)
def test_at_every_step_the_rows_that_remain_follow(make, epochs, prefetch):
    states, expected = states_and_rows(pipelines_of(make(), 2, 2, prefetch=prefetch), epochs)
    assert sorted(itertools.chain(*expected)) == sorted([*range(11)] * EPOCHS)
    assert [len(step) for step in expected] == (
        [4, 4, 3] * EPOCHS if epochs > 1 else [4, 4, 4, 4, 4, 2]
    )
    assert len(states) == len(expected) + epochs
    for taken, state in states:
        for pipelines, replicas in [(2, 2), (1, 1), (1, 3), (3, 1), (2, 5)]:
            fresh = pipelines_of(make(), pipelines, replicas, prefetch=prefetch)
            assert remaining(fresh, state, epochs) == expected[taken:]


def test_at_every_step_with_the_remainder_dropped():
    # What is dropped depends on how many replicas there are in all: 2 * 2 = 1 * 4.
    options = {"remainder": "drop", "policy": "data"}
    states, expected = states_and_rows(pipelines_of(shuffled(11, 5), 2, 2, **options), EPOCHS)
    assert [len(step) for step in expected] == [4, 4] * EPOCHS  # of 5, 5 and 1 rows
    for taken, state in states:
        fresh = pipelines_of(shuffled(11, 5), 1, 4, **options)
        assert remaining(fresh, state, EPOCHS) == expected[taken:]


def of_files():
    """Files of 3, 5 and 3 rows, shuffled."""
    files = {"memory://0": [0, 1, 2], "memory://1": [3, 4, 5, 6, 7], "memory://2": [8, 9, 10]}
    return rx.data.from_files(list(files), files.get).shuffle(seed=0, buffer=3)


@pytest.mark.parametrize("policy", ["off", "hint", "file"])
def test_at_every_step_of_a_pipelines_own_stream(policy):
    def make():
        rows = rx.data.from_arrays(np.arange(11)).shuffle(seed=0).shard(rx.data.HINT)
        rows = of_files() if policy == "file" else rows
        return pipelines_of(rows.batch(5), 2, 2, policy=policy)

    for i, first in enumerate(make()):
        states, expected = states_and_rows([first], EPOCHS)
        for taken, state in states:
            assert remaining([make()[i]], state, EPOCHS) == expected[taken:]
            for whole in pipelines_of(shuffled(11, 5), 1, 2):
                with pytest.raises(rx.errors.InvalidArgumentError, match="stream"):
                    iter(whole).set_state(state)


class Loop:
    """An iterable without a length."""

    def __iter__(self):
        return (np.arange(step, 2 * step + 1) for step in range(5))


SOURCES = {
    "list": lambda: list(Loop()),
    "iterable": Loop,
    "iterator": lambda: iter(Loop()),
    "buffer": lambda: rx.data.from_iterable(Loop()).shuffle(seed=2, buffer=3),
    "cached": lambda: rx.data.from_iterable(Loop()).cache().shuffle(seed=2),
    "parallel": lambda: shuffled().map(lambda x: x + 1, num_parallel=2).prefetch(),
}


@pytest.mark.parametrize("source", SOURCES)
def test_at_every_step_of_any_source(source):
    def distribute(replicas):
        return strategy_of(replicas).distribute_dataset(SOURCES[source]())

    epochs = 1 if source == "iterator" else EPOCHS
    states, expected = states_and_rows([distribute(2)], epochs)
    for taken, state in states:
        assert remaining([distribute(3)], state, epochs) == expected[taken:]


def test_at_every_step_of_a_dataset_function():
    def distribute(seed=0, replicas=2):
        return strategy_of(replicas).distribute_datasets_from_function(
            lambda context: shuffled(9, 1, seed)
        )

    states, expected = states_and_rows([distribute()], EPOCHS)
    for taken, state in states:
        assert remaining([distribute()], state, EPOCHS) == expected[taken:]
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"replicas +2 +3"):
        iter(distribute(replicas=3)).set_state(state)
    with pytest.raises(rx.errors.InvalidArgumentError, match="order"):
        iter(distribute(seed=1)).set_state(state)


OPERATIONS = ["take", "take", "take", "begin", "note", "go", "close"]


@settings(max_examples=40)
@given(
    operations=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 99)), max_size=25),
    prefetch=st.integers(0, 3),
)
def test_any_order_of_taking_and_going(operations, prefetch):
    """Iterators that live side by side, against arithmetic on epochs and steps."""
    epochs = [[batch.tolist() for batch in shuffled().open(epoch=epoch)] for epoch in range(40)]
    dataset = strategy_of(2).distribute_dataset(shuffled(), rx.InputOptions(prefetch=prefetch))
    iterators, places, notes, next_epoch = [iter(dataset)], [[0, 0, True]], [], 1
    for operation, number in operations:
        at = number % len(iterators)
        batches, place = iterators[at], places[at]
        epoch, step, is_open = place
        if operation == "take":
            found = batches.get_next_as_optional()
            assert found.has_value() == (is_open and step < 3)
            if found.has_value():
                assert real_rows(found.get_value()) == epochs[epoch][step]
                place[1] += 1
        elif operation == "begin":
            iterators.append(iter(dataset))
            places.append([next_epoch, 0, True])
            next_epoch += 1
        elif operation == "note":
            notes.append(batches.get_state())
            assert (notes[-1]["epoch"], notes[-1]["step"]) == (epoch, step)
        elif operation == "go" and notes:
            state = notes[number % len(notes)]
            batches.set_state(state)
            places[at] = [state["epoch"], state["step"], True]
            next_epoch = state["epoch"] + 1
        elif operation == "close":
            batches.close()
            place[2] = False


# --- the state -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "through",
    [lambda x: json.loads(json.dumps(x)), lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy],  # noqa: S301
    ids=["json", "pickle", "copy"],
)
def test_a_state_survives(strategy, through):
    batches = iter(strategy.distribute_dataset(shuffled(np.int64(11), np.int64(4))))
    next(batches)
    state = batches.get_state()
    assert through(state) == state
    again = iter(strategy.distribute_dataset(shuffled()))
    again.set_state(through(state))
    assert union([again]) == union([batches])


def test_the_state_tells_what_was_taken_and_not_what_was_placed_ahead(strategy):
    batches = iter(strategy.distribute_dataset(shuffled(60), rx.InputOptions(prefetch=8)))
    for step in range(4):
        assert batches.get_state()["step"] == step
        next(batches)


def test_going_back_and_forth(strategy):
    batches = iter(strategy.distribute_dataset(shuffled()))
    start = batches.get_state()
    first = union([batches])
    batches.set_state(start)
    assert union([batches]) == first


def test_the_passes_after_a_state_are_the_epochs_after_it(strategy):
    dataset = strategy.distribute_dataset(shuffled())
    for _ in range(2):
        state = iter(dataset).get_state()
    again = strategy.distribute_dataset(shuffled())
    batches = iter(again)
    batches.set_state(state)
    assert batches.epoch == 1
    assert iter(again).epoch == 2


@pytest.mark.parametrize(
    ("other", "fact"),
    [
        (lambda: shuffled(count=20), "elements"),
        (lambda: shuffled(batch=5), "batch_size"),
        (lambda: shuffled(seed=1), "order"),
    ],
    ids=["length", "batch", "seed"],
)
def test_the_state_of_another_dataset_is_refused(strategy, other, fact):
    state = iter(strategy.distribute_dataset(shuffled())).get_state()
    batches = iter(strategy.distribute_dataset(other()))
    for refuse in (batches.check_state, batches.set_state):
        with pytest.raises(rx.errors.InvalidArgumentError, match=fact):
            refuse(state)


class Counted:
    """An iterable with a length and no indices."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(range(self.count))


@pytest.mark.parametrize(
    "make",
    [
        lambda count: rx.data.from_arrays(np.arange(count)).batch(4),
        lambda count: rx.data.from_arrays(np.arange(count)).repeat().batch(4),
        lambda count: rx.data.from_iterable(Counted(count)).batch(4),
        lambda count: rx.data.from_iterable(Counted(count)).batch(4).shuffle(buffer=2),
    ],
    ids=["rows", "without end", "in order", "in order, shuffled"],
)
def test_the_state_of_a_longer_source_is_refused(strategy, make):
    """9 and 10 rows make the same number of batches, and the first ones are alike."""
    state = iter(strategy.distribute_dataset(make(9))).get_state()
    iter(strategy.distribute_dataset(make(9))).set_state(state)
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"source_length +9 +10"):
        iter(strategy.distribute_dataset(make(10))).set_state(state)


def test_the_state_of_other_files_is_refused(strategy, tmp_path):
    def files(names):
        for name in names:
            (tmp_path / name).write_text("1\n2\n")
        data = rx.input.files([tmp_path / name for name in names], rx.data.read_lines)
        return strategy.distribute_dataset(data.map(int).batch(2))

    state = iter(files("ab")).get_state()
    iter(files("ab")).set_state(state)
    with pytest.raises(rx.errors.InvalidArgumentError, match="files"):
        iter(files("ac")).set_state(state)


def test_the_state_of_other_batches_of_a_function_is_refused(strategy):
    def dealt(count):
        return strategy.distribute_datasets_from_function(lambda _: [np.zeros(1)] * count)

    state = iter(dealt(4)).get_state()
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"source_length +4 +6"):
        iter(dealt(6)).set_state(state)


@pytest.mark.parametrize(
    "state",
    [None, 3, {}, {"epoch": 0}, {"epoch": 0, "step": -1, "source": {}}],
    ids=str,
)
def test_what_is_no_state_is_refused(strategy, state):
    with pytest.raises(rx.errors.InvalidArgumentError, match="No state"):
        iter(strategy.distribute_dataset(shuffled())).set_state(state)


def test_an_iterator_as_source_cannot_go_back(strategy):
    batches = iter(strategy.distribute_dataset(np.arange(2) + i for i in range(4)))
    start = batches.get_state()
    next(batches)
    with pytest.raises(rx.errors.FailedPreconditionError, match="cannot be set"):
        batches.set_state(start)
    assert union([batches]) == [[1, 2], [2, 3], [3, 4]]


# --- with a checkpoint -----------------------------------------------------------------------


class Run:
    """A training loop of two epochs over 7 rows in batches of 4, its state in attributes."""

    def __init__(self, step, variable):
        self._take_step = step  # compiled once for all runs on as many replicas
        self.w = variable
        self.w.assign(np.zeros(3, np.float32))

    def start(self, strategy):
        x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
        rows = rx.data.from_arrays(x, x @ np.float32([1, -2, 0.5])).shuffle(seed=0)
        self._dataset = strategy.distribute_dataset(rows.batch(4))
        self.batches = iter(self._dataset)
        return self

    def steps(self):
        """Take the steps that remain; where it stands is known between them."""
        while True:
            for batch in self.batches:
                self._take_step(batch)
                yield
            if self.batches.epoch == EPOCHS - 1:
                return
            self.batches = iter(self._dataset)


@functools.cache
def compiled(replicas):
    strategy = strategy_of(replicas)
    with strategy.scope():
        w = rx.Variable(np.zeros(3, np.float32))

    def replica_step(batch):
        x, y = batch
        grads = x * (jnp.dot(x, w.value, precision="highest") - y)[:, None]
        w.assign_sub(0.1 * rx.get_replica_context().global_mean(grads))

    return rx.function(lambda batch: strategy.run(replica_step, args=(batch,))), w


def start(replicas):
    return Run(*compiled(replicas)).start(strategy_of(replicas))


def test_training_resumed_at_every_step_on_other_replicas_is_the_same_training(tmp_path):
    run = start(2)
    Checkpoint(run=run).save(tmp_path / "0")
    for step, _ in enumerate(run.steps(), 1):
        Checkpoint(run=run).save(tmp_path / str(step))
    assert step == 4
    expected = np.asarray(run.w.value)
    assert np.abs(expected).sum() > 0.3
    for taken in range(step + 1):
        again = start(3)
        Checkpoint(run=again).restore(tmp_path / str(taken)).assert_consumed()
        assert len(list(again.steps())) == step - taken
        np.testing.assert_allclose(np.asarray(again.w.value), expected, rtol=0, atol=1e-6)


def test_a_new_process_goes_on(strategy, run_python, tmp_path):
    batches = iter(strategy.distribute_dataset(shuffled()))
    next(batches)
    Checkpoint(batches=batches).save(tmp_path / "checkpoint")
    done = run_python("""
        import jax, json
        jax.config.update("jax_num_cpu_devices", 3)
        import numpy as np, replicax as rx
        strategy = rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])
        rows = rx.data.from_arrays(np.arange(11)).shuffle(seed=0)
        batches = iter(strategy.distribute_dataset(rows.batch(4)))
        rx.checkpoint.Checkpoint(batches=batches).restore("checkpoint").assert_consumed()
        print([strategy.gather(batch, axis=0).tolist() for batch in batches])
    """)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == union([batches])
