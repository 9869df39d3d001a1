"""Epochs, positions, and what iterators of distributed datasets are asked."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import replicax as rx


def rows(strategy, batches):
    """All rows of each batch, in order."""
    return [
        np.concatenate([np.asarray(x) for x in strategy.local_results(batch)]).tolist()
        for batch in batches
    ]


def shuffled(count=7, batch=3, seed=0):
    return rx.data.from_arrays(np.arange(count)).shuffle(seed=seed).batch(batch)


def on(replicas, dataset=None, **options):
    """A strategy of so many replicas, and the dataset on it."""
    strategy = rx.MirroredStrategy(jax.devices()[:replicas])
    dataset = shuffled() if dataset is None else dataset
    return strategy, strategy.distribute_dataset(dataset, rx.InputOptions(**options))


# --- the end ---------------------------------------------------------------------------------


def test_get_next_ends_with_an_error_of_its_own(strategy):
    batches = iter(strategy.distribute_dataset([np.arange(2)]))
    assert rows(strategy, [batches.get_next()]) == [[0, 1]]
    for _ in range(2):
        with pytest.raises(rx.errors.OutOfRangeError, match=r"epoch 0 has 1 step\."):
            batches.get_next()


def test_get_next_as_optional_ends_without_a_value(strategy):
    batches = iter(strategy.distribute_dataset([np.arange(2)]))
    found = batches.get_next_as_optional()
    assert found.has_value()
    assert rows(strategy, [found.get_value()]) == [[0, 1]]
    for _ in range(2):
        last = batches.get_next_as_optional()
        assert not last.has_value()
        with pytest.raises(rx.errors.InvalidArgumentError, match="has_value"):
            last.get_value()


def test_a_closed_iterator_has_ended(strategy):
    batches = iter(strategy.distribute_dataset([np.arange(2)] * 5))
    next(batches)
    batches.close()
    assert list(batches) == []


# --- epochs ----------------------------------------------------------------------------------


def test_each_pass_is_an_epoch_in_its_own_order(strategy):
    dataset = strategy.distribute_dataset(shuffled())
    expected = [
        [[int(row) for row in batch] for batch in shuffled().open(epoch=epoch)]
        for epoch in range(3)
    ]
    assert [rows(strategy, dataset) for _ in range(3)] == expected
    assert len({str(one) for one in expected}) == 3


def test_iterators_know_their_place(strategy):
    dataset = strategy.distribute_dataset(shuffled())
    list(dataset)
    batches = iter(dataset)
    next(batches)
    assert (batches.epoch, batches.step) == (1, 1)
    assert repr(batches) == "<DistributedIterator at step 1 of epoch 1>"


# --- facts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (shuffled, 3),
        (lambda: shuffled().repeat(2), 6),
        (lambda: shuffled().repeat(), rx.input.INFINITE),
        (lambda: iter([]), rx.input.UNKNOWN),
    ],
    ids=["known", "repeated", "endless", "unknown"],
)
def test_cardinality_and_length(strategy, dataset, expected):
    dataset = strategy.distribute_dataset(dataset())
    assert dataset.cardinality == expected
    assert bool(dataset)
    if expected >= 0:
        assert len(dataset) == expected == dataset.plan.num_steps
    else:
        with pytest.raises(rx.errors.ArgumentTypeError, match="has no length"):
            len(dataset)


def test_the_element_spec_is_one_replicas_batch(strategy):
    batches = [{"x": np.zeros((3, 5)), "y": np.arange(3)}]
    assert strategy.distribute_dataset(batches).element_spec == {
        "x": jax.ShapeDtypeStruct((2, 5), np.float32),
        "y": jax.ShapeDtypeStruct((2,), np.int32),
    }


def test_the_element_spec_costs_no_row(strategy):
    dataset = strategy.distribute_dataset(iter([np.arange(2)]))
    with pytest.raises(rx.errors.FailedPreconditionError, match="would be lost"):
        _ = dataset.element_spec
    assert rows(strategy, dataset) == [[0, 1]]


def test_an_empty_dataset_has_no_element_spec(strategy):
    with pytest.raises(rx.errors.OutOfRangeError, match="no elements"):
        _ = strategy.distribute_dataset([]).element_spec


# --- where it may be used --------------------------------------------------------------------


def test_taking_a_batch_in_a_replica_is_refused(run, strategy):
    batches = iter(strategy.distribute_dataset([np.arange(2)]))
    with pytest.raises(rx.errors.ContextError, match=r"args=\(batch,\)"):
        run(lambda: next(batches))


# --- resuming --------------------------------------------------------------------------------


@pytest.mark.parametrize("remainder", ["mask", "drop"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_resuming_anywhere_on_other_replicas_gives_the_rows_that_remain(remainder, prefetch):
    strategy, dataset = on(2, prefetch=prefetch, remainder=remainder)
    expected, states = [], []
    for _ in range(2):
        batches = iter(dataset)
        states.append((len(expected), batches.get_state()))
        for batch in batches:
            expected += rows(strategy, [batch])
            states.append((len(expected), batches.get_state()))
    assert len(expected) == {"mask": 6, "drop": 4}[remainder]
    # `drop` depends on the number of replicas by its meaning: compare with as many.
    for taken, state in states:
        for replicas in (1, 3, 4) if remainder == "mask" else (2,):
            other, again = on(replicas, prefetch=prefetch, remainder=remainder)
            batches = iter(again)
            batches.set_state(json.loads(json.dumps(state)))
            found = rows(other, batches)
            if state["epoch"] == 0:
                found += rows(other, again)
            assert found == expected[taken:]


def test_a_new_process_goes_on(strategy, run_python):
    dataset = strategy.distribute_dataset(shuffled())
    batches = iter(dataset)
    next(batches)
    state = batches.get_state()
    done = run_python(f"""
        import jax, json
        jax.config.update("jax_num_cpu_devices", 3)
        import numpy as np, replicax as rx
        strategy = rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])
        dataset = rx.data.from_arrays(np.arange(7)).shuffle(seed=0).batch(3)
        batches = iter(strategy.distribute_dataset(dataset))
        batches.set_state(json.loads('{json.dumps(state)}'))
        print([strategy.gather(batch, axis=0).tolist() for batch in batches])
    """)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == rows(strategy, batches)


def test_the_state_tells_what_was_taken_and_not_what_was_placed_ahead(strategy):
    batches = iter(strategy.distribute_dataset(shuffled(60), rx.InputOptions(prefetch=8)))
    for step in range(4):
        assert batches.get_state()["step"] == step
        next(batches)


def test_going_back_and_forth(strategy):
    dataset = strategy.distribute_dataset(shuffled())
    batches = iter(dataset)
    start = batches.get_state()
    first = rows(strategy, batches)
    batches.set_state(start)
    assert rows(strategy, batches) == first


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
        (lambda: shuffled(batch=2), "batch_size"),
        (lambda: shuffled(seed=1), "order"),
    ],
    ids=["length", "batch", "seed"],
)
def test_the_state_of_another_dataset_is_refused(strategy, other, fact):
    state = iter(strategy.distribute_dataset(shuffled())).get_state()
    batches = iter(strategy.distribute_dataset(other()))
    with pytest.raises(rx.errors.InvalidArgumentError, match=fact):
        batches.set_state(state)


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


def test_an_iterator_as_source_skips_to_a_state(strategy):
    def batches():
        return (np.arange(2) + i for i in range(4))

    first = iter(strategy.distribute_dataset(batches()))
    next(first)
    again = iter(strategy.distribute_dataset(batches()))
    again.set_state(first.get_state())
    assert rows(strategy, again) == rows(strategy, first) == [[1, 2], [2, 3], [3, 4]]


def test_an_iterator_as_source_cannot_go_back(strategy):
    batches = iter(strategy.distribute_dataset(np.arange(2) + i for i in range(4)))
    start = batches.get_state()
    next(batches)
    with pytest.raises(rx.errors.FailedPreconditionError, match="cannot be set"):
        batches.set_state(start)


# --- functions -------------------------------------------------------------------------------


def test_a_function_may_return_a_dataset_with_epochs(strategy):
    dataset = strategy.distribute_datasets_from_function(lambda context: shuffled(4, 1))
    expected = [[[int(x) for x in b] for b in shuffled(4, 1).open(epoch=e)] for e in range(2)]
    for one in expected:
        assert rows(strategy, dataset) == [one[0] + one[1], one[2] + one[3]]
    assert dataset.plan is None
    assert len(dataset) == 2


def test_resuming_the_batches_of_a_function(strategy):
    def distribute(strategy):
        return iter(strategy.distribute_datasets_from_function(lambda context: shuffled(9, 1)))

    batches = distribute(strategy)
    next(batches)
    again = distribute(strategy)
    again.set_state(batches.get_state())
    assert rows(strategy, again) == rows(strategy, batches)
    other = rx.MirroredStrategy(jax.devices()[:3])
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"replicas +2 +3"):
        distribute(other).set_state(batches.get_state())


def test_per_replica_calls_the_function_once_a_replica(strategy):
    contexts = []

    def dataset_fn(context):
        contexts.append(context)
        return [np.array([i]) for i in range(context.input_pipeline_id, 5, 2)]

    options = rx.InputOptions(replication_mode="per_replica")
    dataset = strategy.distribute_datasets_from_function(dataset_fn, options)
    parts = [[np.asarray(x).tolist() for x in strategy.local_results(b)] for b in dataset]
    assert parts == [[[0], [1]], [[2], [3]], [[4], []]]
    assert len(dataset) == 3
    assert contexts == [rx.InputContext(2, i, 2) for i in range(2)]


def test_the_first_replicas_stream_may_end_first(strategy):
    def dataset_fn(context):
        return [np.full(2, 7)] * (1 + context.input_pipeline_id)

    options = rx.InputOptions(replication_mode="per_replica")
    dataset = strategy.distribute_datasets_from_function(dataset_fn, options)
    parts = [[np.asarray(x).tolist() for x in strategy.local_results(b)] for b in dataset]
    assert parts == [[[7, 7], [7, 7]], [[], [7, 7]]]
    dropping = rx.InputOptions(replication_mode="per_replica", remainder="drop")
    dataset = strategy.distribute_datasets_from_function(dataset_fn, dropping)
    assert len(list(dataset)) == len(dataset) == 1


def test_per_replica_is_for_functions_alone(strategy):
    options = rx.InputOptions(replication_mode="per_replica")
    with pytest.raises(rx.errors.UnimplementedError, match="distribute_datasets_from_function"):
        strategy.distribute_dataset(np.arange(4), options)
