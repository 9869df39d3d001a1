"""Epochs, and what iterators of distributed datasets are asked."""

from __future__ import annotations

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


# --- functions -------------------------------------------------------------------------------


def test_a_function_may_return_a_dataset_with_epochs(strategy):
    dataset = strategy.distribute_datasets_from_function(lambda context: shuffled(4, 1))
    expected = [[[int(x) for x in b] for b in shuffled(4, 1).open(epoch=e)] for e in range(2)]
    for one in expected:
        assert rows(strategy, dataset) == [one[0] + one[1], one[2] + one[3]]
    assert dataset.plan is None
    assert len(dataset) == 2


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
