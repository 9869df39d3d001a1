from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


def rows(strategy, dataset):
    """The rows of each replica in each batch, as lists."""
    return [[np.asarray(x).tolist() for x in strategy.local_results(batch)] for batch in dataset]


# --- sources -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.arange, jnp.arange])
def test_an_array_is_cut_into_batches(strategy, make):
    dataset = strategy.distribute_dataset(make(7), rx.InputOptions(global_batch_size=4))
    assert rows(strategy, dataset) == [[[0, 1], [2, 3]], [[4, 5], [6]]]
    assert dataset.num_batches == 2
    assert repr(dataset) == "<DistributedDataset of 2 global batches on 2 replicas>"


def test_an_array_is_one_batch_without_a_size(strategy):
    assert rows(strategy, strategy.distribute_dataset(np.arange(4))) == [[[0, 1], [2, 3]]]


def test_dicts_and_tuples_of_arrays(strategy):
    arrays = {"x": np.arange(4).reshape(4, 1), "y": (np.arange(4), jnp.arange(4))}
    (batch,) = strategy.distribute_dataset(arrays)
    first, second = strategy.local_results(batch)
    assert first["x"].tolist() == [[0], [1]]
    assert [x.tolist() for x in second["y"]] == [[2, 3], [2, 3]]


def test_a_list_is_a_list_of_batches(strategy):
    dataset = strategy.distribute_dataset([np.arange(2), np.arange(4)])
    assert rows(strategy, dataset) == [[[0], [1]], [[0, 1], [2, 3]]]
    assert dataset.num_batches == 2


def test_any_iterable_may_be_iterated_again(strategy):
    class Source:
        def __iter__(self):
            yield np.arange(2)

    dataset = strategy.distribute_dataset(Source())
    assert dataset.num_batches is None
    assert "an unknown number" in repr(dataset)
    for _ in range(3):
        assert rows(strategy, dataset) == [[[0], [1]]]


def test_a_generator_goes_on_where_it_stopped(strategy):
    dataset = strategy.distribute_dataset(np.arange(2) + i for i in range(3))
    assert rows(strategy, [next(iter(dataset))]) == [[[0], [1]]]
    assert rows(strategy, dataset) == [[[1], [2]], [[2], [3]]]


def test_a_generator_that_is_used_up_is_refused(strategy):
    dataset = strategy.distribute_dataset(np.arange(2) for _ in range(3))
    assert len(list(dataset)) == 3
    with pytest.raises(rx.errors.OutOfRangeError, match="a second epoch would have no steps"):
        list(dataset)


@pytest.mark.parametrize("empty", [[], (), np.zeros((0, 3)), [np.zeros((0, 3))]], ids=str)
def test_empty_datasets_have_no_batches(strategy, empty):
    assert list(strategy.distribute_dataset(empty)) == []


@pytest.mark.parametrize("steps", [1, 3])
def test_two_passes_at_a_time(strategy, steps):
    dataset = strategy.distribute_dataset(np.arange(8), rx.InputOptions(global_batch_size=2))
    first, second = iter(dataset), iter(dataset)
    for _ in range(steps):
        assert rows(strategy, [next(first)]) == rows(strategy, [next(second)])


def test_batches_go_into_both_runners(run, strategy):
    dataset = strategy.distribute_dataset(np.arange(6.0), rx.InputOptions(global_batch_size=4))
    means = [
        float(run(lambda x: rx.get_replica_context().global_mean(x), batch)) for batch in dataset
    ]
    assert means == [1.5, 4.5]


def test_the_mask_of_real_rows_has_two_names(strategy):
    def count():
        ctx = rx.get_replica_context()
        return [
            ctx.all_reduce("sum", jnp.sum(mask.astype(jnp.int32)))
            for mask in (ctx.example_mask, ctx.row_mask)
        ]

    step = rx.function(lambda batch: strategy.run(lambda x: count(), args=(batch,)))
    (batch,) = strategy.distribute_dataset([np.arange(3)])
    assert [int(found) for found in step(batch)] == [3, 3]


# --- the remainder -----------------------------------------------------------------------------


def test_a_remainder_is_kept_by_default(strategy):
    dataset = strategy.distribute_dataset([np.arange(3), np.arange(1)])
    assert rows(strategy, dataset) == [[[0, 1], [2]], [[0], []]]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (9, [[[0, 1, 2], [3, 4, 5]], [[6], [7]]]),
        (7, [[[0, 1, 2], [3, 4, 5]]]),
        (6, [[[0, 1, 2], [3, 4, 5]]]),
        (1, []),
    ],
)
def test_a_remainder_can_be_dropped(strategy, count, expected):
    options = rx.InputOptions(global_batch_size=6, remainder="drop")
    dataset = strategy.distribute_dataset(np.arange(count), options)
    assert rows(strategy, dataset) == expected
    assert dataset.num_batches == len(expected)


def test_a_remainder_can_be_an_error(strategy):
    options = rx.InputOptions(global_batch_size=4, remainder="error")
    dataset = iter(strategy.distribute_dataset(np.arange(7), options))
    next(dataset)
    with pytest.raises(rx.errors.InvalidArgumentError, match="Global batch 1 has 3 rows") as caught:
        next(dataset)
    assert "divisible by 2" in str(caught.value)


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arrays", [(np.zeros(2), np.zeros(3)), jnp.float32(3.0), {"a": np.zeros(2), "b": np.array(1)}]
)
def test_arrays_without_one_number_of_rows_are_refused(strategy, arrays):
    with pytest.raises(rx.errors.InvalidArgumentError, match="one number of rows") as caught:
        strategy.distribute_dataset(arrays)
    assert "dataset" in str(caught.value)


@pytest.mark.parametrize(
    "dataset",
    [3, None, np.float32(1), lambda: 1, "text", b"text", {"x": [1, 2]}, {}, object()],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_dataset_is_refused(strategy, dataset):
    with pytest.raises(rx.errors.ArgumentTypeError, match="cannot be distributed"):
        strategy.distribute_dataset(dataset)


def test_a_per_replica_value_is_no_dataset(strategy):
    with pytest.raises(rx.errors.ArgumentTypeError, match="PerReplica cannot"):
        strategy.distribute_dataset(rx.PerReplica([np.zeros(2), np.zeros(2)]))


def test_a_distributed_dataset_is_not_distributed_again(strategy):
    dataset = strategy.distribute_dataset(np.arange(4))
    for one in (dataset, iter(dataset)):
        with pytest.raises(rx.errors.InvalidArgumentError, match="distributed already"):
            strategy.distribute_dataset(one)
        with pytest.raises(rx.errors.InvalidArgumentError, match="distributed already"):
            rx.input.plan_input(one, 2)


@pytest.mark.parametrize("make", [list, rx.data.from_iterable], ids=["list", "chain"])
def test_batches_that_are_distributed_are_not_distributed_again(strategy, make):
    """Their replicas would be taken for rows."""
    batches = make(list(strategy.distribute_dataset(np.arange(4))))
    with pytest.raises(rx.errors.InvalidArgumentError, match="holds per-replica values"):
        next(iter(strategy.distribute_dataset(batches)))


@pytest.mark.parametrize("options", [3, {"global_batch_size": 2}, "mask"], ids=str)
def test_what_are_no_options_is_refused(strategy, options):
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"rx\.InputOptions"):
        strategy.distribute_dataset(np.arange(4), options)


def test_a_batch_size_for_batches_is_refused(strategy):
    options = rx.InputOptions(global_batch_size=4)
    with pytest.raises(rx.errors.InvalidArgumentError, match="yields its own batches, a list"):
        strategy.distribute_dataset([np.arange(4)], options)


def test_iterating_in_a_replica_is_refused(run, strategy):
    dataset = strategy.distribute_dataset(np.arange(4))
    with pytest.raises(rx.errors.ContextError, match=r"args=\(batch,\)"):
        run(lambda: next(iter(dataset)))
