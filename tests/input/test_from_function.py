"""Datasets made by a function, whose batches go to the replicas in turn."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


def rows(strategy, dataset):
    """The rows of each replica in each step, as lists."""
    return [[np.asarray(x).tolist() for x in strategy.local_results(batch)] for batch in dataset]


def distribute(strategy, batches, **options):
    return strategy.distribute_datasets_from_function(
        lambda context: batches, rx.InputOptions(**options)
    )


# --- what the function is told -------------------------------------------------------------------


def test_the_function_is_called_once_with_what_it_needs_to_know(strategy):
    contexts = []

    def dataset_fn(context):
        contexts.append(context)
        return [np.full(context.get_per_replica_batch_size(4), i) for i in range(4)]

    dataset = strategy.distribute_datasets_from_function(dataset_fn)
    for _ in range(2):
        assert rows(strategy, dataset) == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]
    assert contexts == [
        rx.InputContext(num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=2)
    ]


def test_a_context_of_its_own_has_one_replica():
    assert rx.InputContext().get_per_replica_batch_size(7) == 7


@pytest.mark.parametrize("size", [np.int64(8), np.array(8)], ids=repr)
def test_a_batch_size_may_be_an_integer_of_any_kind(size):
    share = rx.InputContext(num_replicas_in_sync=4).get_per_replica_batch_size(size)
    assert (type(share), share) == (int, 2)


@pytest.mark.parametrize("size", [5, 0, -4, 4.0, "4", None], ids=repr)
def test_a_batch_size_that_cannot_be_shared_evenly_is_refused(size):
    context = rx.InputContext(num_replicas_in_sync=2)
    with pytest.raises(rx.errors.InvalidArgumentError, match="evenly over 2 replicas") as caught:
        context.get_per_replica_batch_size(size)
    assert repr(size) in str(caught.value)


# --- batches in turn -----------------------------------------------------------------------------


def test_batches_reach_the_replicas_as_they_are(strategy):
    batches = [{"x": np.full((2, 3), i), "y": (jnp.arange(2) + i,)} for i in range(4)]
    dataset = distribute(strategy, batches)
    assert dataset.num_batches == 2
    for step, batch in enumerate(dataset):
        for replica, found in enumerate(strategy.local_results(batch)):
            expected = batches[2 * step + replica]
            np.testing.assert_array_equal(found["x"], expected["x"])
            np.testing.assert_array_equal(found["y"][0], expected["y"][0])
            assert found["x"].devices() == {strategy.replica_mesh.devices[replica]}


def test_even_batches_are_not_padded(strategy):
    (batch,) = distribute(strategy, [np.zeros(2), np.ones(2)])
    assert batch.rows is None


def test_a_batch_too_few_leaves_replicas_without_rows():
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(4)])
    dataset = distribute(strategy, [np.full((2, 1), i) for i in range(6)])
    assert dataset.num_batches == 2
    assert rows(strategy, dataset) == [
        [[[0], [0]], [[1], [1]], [[2], [2]], [[3], [3]]],
        [[[4], [4]], [[5], [5]], [], []],
    ]


def test_batches_of_different_lengths_are_kept(strategy):
    dataset = distribute(strategy, [np.arange(1), np.arange(3), np.arange(0), np.arange(2)])
    assert rows(strategy, dataset) == [[[0], [0, 1, 2]], [[], [0, 1]]]


def test_padding_repeats_a_real_row(strategy):
    (batch,) = distribute(strategy, [np.zeros((0, 2)), np.array([[3.0, 4.0], [5.0, 6.0]])])
    assert batch.rows.tolist() == [0, 2]
    assert np.asarray(batch.stacked).tolist() == [[[3, 4], [3, 4]], [[3, 4], [5, 6]]]


def test_a_step_without_rows_is_left_out(strategy):
    assert rows(strategy, distribute(strategy, [np.zeros(0), np.zeros(0), np.ones(1)])) == [
        [[1.0], []]
    ]


@pytest.mark.parametrize("kind", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_a_function_without_batches_makes_no_steps(strategy, kind):
    assert list(distribute(strategy, kind(()))) == []


def test_a_generator_is_used_up_after_one_pass(strategy):
    dataset = distribute(strategy, (np.full(1, i) for i in range(3)))
    assert dataset.num_batches is None
    assert rows(strategy, dataset) == [[[0], [1]], [[2], []]]
    with pytest.raises(rx.errors.OutOfRangeError, match="no steps"):
        list(dataset)


def test_batches_are_taken_when_they_are_needed(strategy):
    taken = []

    def batches():
        for i in range(100):
            taken.append(i)
            yield np.full(1, i)

    dataset = distribute(strategy, batches(), prefetch=0)
    assert rows(strategy, [next(iter(dataset))]) == [[[0], [1]]]
    assert taken == [0, 1]


def test_uneven_batches_count_by_row_in_both_runners(run, strategy):
    values = [np.array([1.0, 2.0, 3.0]), np.array([6.0]), np.array([4.0, 6.0])]
    found = [
        float(run(lambda x: rx.get_replica_context().global_mean(x), batch))
        for batch in distribute(strategy, values)
    ]
    assert found == [3.0, 5.0]


def test_one_replica_gets_every_batch():
    one_replica = rx.OneDeviceStrategy("cpu:0")
    dataset = one_replica.distribute_datasets_from_function(lambda context: [np.arange(2)])
    assert rows(one_replica, dataset) == [[[0, 1]]]


# --- the remainder -------------------------------------------------------------------------------


def test_what_is_too_much_can_be_dropped(strategy):
    batches = [np.arange(3), np.arange(2), np.arange(1), np.arange(1), np.arange(4)]
    dataset = distribute(strategy, batches, remainder="drop")
    assert rows(strategy, dataset) == [[[0, 1], [0, 1]], [[0], [0]]]
    assert dataset.num_batches == 2


@pytest.mark.parametrize("last", [[np.arange(2)], [np.arange(2), np.arange(1)]], ids=len)
def test_a_remainder_can_be_an_error(strategy, last):
    dataset = iter(distribute(strategy, [np.arange(2)] * 2 + last, remainder="error"))
    next(dataset)
    with pytest.raises(rx.errors.InvalidArgumentError, match="of step 1 have diff") as caught:
        next(dataset)
    rows_of_the_second = len(last[1]) if len(last) > 1 else 0
    assert re.search(rf"^ +1 +{rows_of_the_second}$", str(caught.value), re.MULTILINE)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.zeros((2, 3)), np.zeros((2, 4))),
        (np.zeros(2), np.zeros(2, np.int32)),
        (np.zeros(2), np.float32(1.0)),
        ((np.zeros(2), np.zeros(3)), (np.zeros(2), np.zeros(2))),
        ((), ()),
    ],
    ids=["shape", "dtype", "scalar", "lengths", "nothing"],
)
def test_batches_that_do_not_fit_together_are_refused(strategy, first, second):
    dataset = distribute(strategy, [first, second])
    with pytest.raises(rx.errors.InvalidArgumentError, match="step 0 do not fit together"):
        list(dataset)


def test_batches_of_different_structures_are_refused(strategy):
    dataset = distribute(strategy, [{"x": np.zeros(2)}, {"y": np.zeros(2)}])
    with pytest.raises(rx.errors.StructureMismatchError, match="different structures") as caught:
        list(dataset)
    assert "'y'" in str(caught.value)


@pytest.mark.parametrize(
    "batches",
    [3, None, "text", {"x": np.zeros(2)}, np.zeros((4, 2)), (np.zeros(2), np.zeros(2))],
    ids=lambda value: type(value).__name__,
)
def test_what_are_no_batches_is_refused(strategy, batches):
    with pytest.raises(rx.errors.ArgumentTypeError, match="no iterable of batches"):
        distribute(strategy, batches)


def test_a_distributed_dataset_is_not_dealt_out_again(strategy):
    dataset = strategy.distribute_dataset(np.arange(4))
    with pytest.raises(rx.errors.InvalidArgumentError, match="distributed already"):
        distribute(strategy, dataset)
    with pytest.raises(rx.errors.InvalidArgumentError, match="holds per-replica values"):
        next(iter(distribute(strategy, list(dataset))))


@pytest.mark.parametrize("fn", [3, None, [np.zeros(2)]], ids=repr)
def test_what_is_no_function_is_refused(strategy, fn):
    with pytest.raises(rx.errors.ArgumentTypeError, match="takes a function"):
        strategy.distribute_datasets_from_function(fn)


def test_what_are_no_options_is_refused(strategy):
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"rx\.InputOptions"):
        strategy.distribute_datasets_from_function(lambda context: [], {"remainder": "drop"})


def test_a_global_batch_size_is_refused(strategy):
    with pytest.raises(rx.errors.InvalidArgumentError, match="get_per_replica_batch_size"):
        distribute(strategy, [np.zeros(2)], global_batch_size=4)


def test_in_a_replica_it_is_refused(run, strategy):
    with pytest.raises(rx.errors.ContextError):
        run(lambda: strategy.distribute_datasets_from_function(lambda context: []))
