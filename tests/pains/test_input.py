"""Sharding, epochs, cardinality and duplicates of input: group D of the known pains.

Each test is named after its report and uses the report's numbers. Most reports are about several
processes: here the plans and the shards of all processes are made in one, and what a step sees is
shown for replicas. That real processes agree on them is not here, because strategies have one
process (D1, D2, D3, D5, D7, D11 and D13 in part).
"""

from __future__ import annotations

import logging
from itertools import chain

import numpy as np
import pytest

import replicax as rx

POLICIES = ["off", "auto", "file", "data", "hint"]


def distributed(strategy, rows, batch_size, **options):
    return strategy.distribute_dataset(
        rows, rx.InputOptions(global_batch_size=batch_size, **options)
    )


def steps_of(strategy, batches):
    """The rows of each step, one list a replica."""
    return [
        [np.asarray(part).tolist() for part in strategy.local_results(batch)] for batch in batches
    ]


def flat(nested):
    """The elements of lists in lists."""
    return list(chain.from_iterable(nested))


def rows_of(dataset):
    """The rows of one epoch, in order."""
    return [row for element in dataset for row in np.ravel(element).tolist()]


def plans(dataset, **options):
    """The plans of two processes with one replica each."""
    from replicax.input._plan import plan_input

    chosen = rx.InputOptions(**options)
    return [plan_input(dataset, 1, chosen, num_pipelines=2, pipeline_id=i) for i in range(2)]


def promised(plan, epoch=0):
    """The rows of each step, one list a replica, as a plan tells them."""
    return [
        [np.asarray(ids).tolist() for ids in plan.rows(step, epoch=epoch)]
        for step in range(plan.num_steps)
    ]


# --- who reads what --------------------------------------------------------------------------


@pytest.mark.parametrize("is_batched", [False, True])
def test_d1_shards_are_disjoint_and_complete(is_batched):
    dataset = rx.data.from_arrays(np.arange(8))
    shards = [dataset.sharded(2, index, by="rows") for index in range(2)]
    if is_batched:
        shards = [shard.batch(3) for shard in shards]
    first, second = map(rows_of, shards)
    assert len(first) == len(second) == 4
    assert sorted(first + second) == list(range(8))


def test_d1_two_processes_read_different_rows():
    first, second = plans(np.arange(8), global_batch_size=4, policy="data")
    assert promised(first) == [[[0, 1]], [[4, 5]]]
    assert promised(second) == [[[2, 3]], [[6, 7]]]
    assert first.policy is rx.input.AutoShardPolicy.DATA
    assert "DATA" in str(first)


def test_d1_replicas_read_different_rows(strategy):
    steps = steps_of(strategy, distributed(strategy, np.arange(8), 4))
    assert steps == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("source", ["array", "batches"])
def test_d2_one_process_reads_everything_without_a_warning(strategy, policy, source, caplog):
    caplog.set_level(logging.WARNING, logger="replicax")
    if source == "array":
        batches = distributed(strategy, np.arange(8), 4, policy=policy)
    else:
        rows = [np.arange(4), np.arange(4, 8)]
        batches = strategy.distribute_dataset(rows, rx.InputOptions(policy=policy))
    assert steps_of(strategy, batches) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert caplog.messages == []


def test_d2_without_sharding_every_row_is_read_by_each_process():
    first, second = plans(np.arange(8), global_batch_size=4, policy="off")
    assert promised(first) == promised(second)
    assert flat(flat(promised(first))) == list(range(8))
    assert "OFF" in str(first)


def read_numbers(path):
    return np.loadtxt(path, dtype=np.int32, ndmin=1)


@pytest.fixture
def one_file(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("\n".join(map(str, range(8))))
    return rx.data.from_files([path], read_numbers).batch(4)


def test_d3_fewer_files_than_processes_are_refused_with_both_counts(one_file):
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"(?s)\b1 file.*\b2 ") as caught:
        plans(one_file, policy="file")
    assert "policy" in str(caught.value)


def test_d3_or_fall_back_to_rows_with_one_notice(one_file, caplog):
    caplog.set_level(logging.INFO, logger="replicax")
    first, second = plans(one_file)
    assert first.policy is second.policy is rx.input.AutoShardPolicy.DATA
    assert len(caplog.messages) == 2  # one a process
    for message in caplog.messages:
        assert "1 file" in message
        assert "2 pipelines" in message


class ReaderOfBatches:
    """A reader of one's own: no list, no generator, no length."""

    def __iter__(self):
        for start in range(0, 10, 4):
            yield {"id": np.arange(start, min(start + 4, 10))}


class ReaderWithOtherMethods:
    def read(self):
        return np.arange(10)


def test_d4_a_custom_reader_reaches_each_replica_once(runner, strategy):
    step = runner(lambda batch: strategy.run(lambda batch: batch["id"], args=(batch,)))
    batches = strategy.distribute_dataset(ReaderOfBatches())
    for _ in range(2):
        seen = [strategy.gather(step(batch), axis=0) for batch in batches]
        np.testing.assert_array_equal(np.concatenate(seen), np.arange(10))


def test_d4_a_reader_that_cannot_be_read_is_refused_by_name(strategy):
    with pytest.raises(rx.errors.ArgumentTypeError, match="ReaderWithOtherMethods"):
        strategy.distribute_dataset(ReaderWithOtherMethods())


class ReaderOfRows:
    def __iter__(self):
        yield from range(10)


def test_d4_a_custom_reader_is_sharded_by_rows_and_not_by_files():
    dataset = rx.data.as_dataset(ReaderOfRows())
    shards = [rows_of(dataset.sharded(2, index, by="rows")) for index in range(2)]
    assert sorted(shards[0] + shards[1]) == list(range(10))
    assert abs(len(shards[0]) - len(shards[1])) <= 1
    assert dataset.files is None
    with pytest.raises(rx.errors.ReplicaxError):
        dataset.sharded(2, 0, by="files")


# --- epochs ----------------------------------------------------------------------------------


def ten_rows(kind):
    batches = [np.arange(start, min(start + 4, 10)) for start in range(0, 10, 4)]
    return {
        "list": batches,
        "iterable": ReaderOfBatches(),
    }[kind]


@pytest.mark.parametrize("kind", ["arrays", "list", "iterable"])
def test_d5_epochs_need_no_step_count(runner, strategy, kind):
    if kind == "arrays":
        batches = distributed(strategy, np.arange(10), 4)
    else:
        batches = strategy.distribute_dataset(ten_rows(kind))
    with strategy.scope():
        rows = rx.Variable(0, trainable=False, synchronization="on_read", aggregation="sum")

    def replica_fn(batch):
        ids = batch["id"] if isinstance(batch, dict) else batch
        rows.assign_add(rx.get_replica_context().local_sum(ids >= 0))

    step = runner(lambda batch: strategy.run(replica_fn, args=(batch,)))
    counts = []
    for _ in range(3):
        results = [step(batch) for batch in batches]
        counts.append((len(results), int(rows)))
    assert counts == [(3, 10), (3, 20), (3, 30)]


def test_d5_two_processes_have_one_number_of_steps():
    first, second = plans(np.arange(10), global_batch_size=4)
    assert first.num_steps == second.num_steps == 3
    for epoch in range(3):
        assert promised(first, epoch) == [[[0, 1]], [[4, 5]], [[8]]]
        assert promised(second, epoch) == [[[2, 3]], [[6, 7]], [[9]]]


def test_d5_a_source_that_ends_for_good_is_not_an_empty_epoch(strategy):
    batches = strategy.distribute_dataset(iter(ten_rows("list")))
    assert len(list(batches)) == 3
    with pytest.raises(rx.errors.OutOfRangeError, match="start anew"):
        list(batches)


@pytest.mark.parametrize("source", ["indices", "iterable"])
def test_d7_each_reader_of_each_process_reads_its_own_rows(source):
    dataset = rx.data.from_arrays(np.arange(12))
    if source == "iterable":
        dataset = rx.data.from_iterable(lambda: iter(range(12)))
    shards = [
        dataset.sharded(2, process, by="rows").shard(2, reader)
        for process in range(2)
        for reader in range(2)
    ]
    assert [len(rows_of(shard)) for shard in shards] == [3, 3, 3, 3]
    assert sorted(flat(map(rows_of, shards))) == list(range(12))


def test_d7_readers_in_threads_do_not_repeat_rows(strategy):
    dataset = rx.data.from_iterable(lambda: iter(range(12))).map(np.int32, num_parallel=2)
    batches = strategy.distribute_dataset(dataset.batch(4))
    assert steps_of(strategy, batches) == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
        [[8, 9], [10, 11]],
    ]


def shuffled():
    return rx.data.from_arrays(np.arange(10)).shuffle(seed=0).batch(4)


def epochs_of(dataset, count=3):
    return [rows_of(dataset.open(epoch=epoch)) for epoch in range(count)]


def test_d8_every_epoch_has_an_order_of_its_own():
    epochs = epochs_of(shuffled())
    assert len({tuple(epoch) for epoch in epochs}) == 3
    for epoch in epochs:
        assert sorted(epoch) == list(range(10))
        assert epoch != list(range(10))


def test_d8_nobody_has_to_tell_the_epoch(strategy):
    expected = epochs_of(shuffled())
    batches = strategy.distribute_dataset(shuffled())
    for epoch in expected:
        seen = [strategy.gather(batch, axis=0) for batch in batches]
        assert rows_of(seen) == epoch


def test_d8_another_process_has_the_same_order(run_python):
    program = """
        import numpy as np
        import replicax as rx

        dataset = rx.data.from_arrays(np.arange(10)).shuffle(seed=0).batch(4)
        for epoch in range(3):
            print(np.concatenate(list(dataset.open(epoch=epoch))).tolist())
        """
    result = run_python(program, PYTHONHASHSEED="7")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [str(epoch) for epoch in epochs_of(shuffled())]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_d8_resuming_at_epoch_2_repeats_epoch_2(strategy, steps):
    batches = strategy.distribute_dataset(shuffled())
    for _ in range(2):
        list(batches)
    iterator = iter(batches)
    for _ in range(steps):
        next(iterator)
    state = iterator.get_state()
    rest = [strategy.gather(batch, axis=0).tolist() for batch in iterator]
    assert rest == [batch.tolist() for batch in shuffled().open(epoch=2, start=steps)]

    three = rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])
    resumed = iter(three.distribute_dataset(shuffled()))
    resumed.set_state(state)
    assert [three.gather(batch, axis=0).tolist() for batch in resumed] == rest


@pytest.mark.parametrize("source", ["indices", "iterable"])
def test_d8_a_position_under_another_seed_is_refused(strategy, source):
    """The rows that remain would be other ones, some twice and some never."""

    def shuffled_with(seed):
        if source == "indices":
            dataset = rx.data.from_arrays(np.arange(10)).shuffle(seed=seed)
        else:
            dataset = rx.data.from_iterable(lambda: iter(range(10))).shuffle(seed=seed, buffer=4)
        return iter(strategy.distribute_dataset(dataset.batch(4)))

    iterator = shuffled_with(0)
    next(iterator)
    with pytest.raises(rx.errors.InvalidArgumentError):
        shuffled_with(1).set_state(iterator.get_state())


# --- batch sizes and sources -----------------------------------------------------------------


@pytest.fixture(scope="module")
def four():
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(4)])


def sizes_of(strategy, batches):
    return [[len(part) for part in step] for step in steps_of(strategy, batches)]


def test_d10_a_batch_of_a_dataset_is_the_global_batch(four):
    assert sizes_of(four, distributed(four, np.arange(16), 8)) == [[2, 2, 2, 2]] * 2
    batches = four.distribute_dataset([np.arange(8), np.arange(8)])
    assert sizes_of(four, batches) == [[2, 2, 2, 2]] * 2


def test_d10_so_is_the_batch_of_a_chain(four):
    dataset = rx.data.from_arrays(np.arange(16)).batch(8)
    assert dataset.batch_size == 8
    assert sizes_of(four, four.distribute_dataset(dataset)) == [[2, 2, 2, 2]] * 2


def test_d10_a_batch_of_a_dataset_function_is_one_replicas(four):
    asked = []

    def make(context):
        asked.append(context.get_per_replica_batch_size(32))
        return [np.arange(8) + 8 * i for i in range(8)]

    batches = four.distribute_datasets_from_function(make)
    assert asked == [8]
    steps = steps_of(four, batches)
    assert [[len(part) for part in step] for step in steps] == [[8, 8, 8, 8]] * 2
    assert flat(flat(steps)) == list(range(64))


def generator_of_batches():
    yield from ten_rows("list")


def test_d11_a_generator_of_batches(runner, strategy):
    step = runner(lambda batch: strategy.run(lambda x: x, args=(batch,)))
    batches = strategy.distribute_dataset(generator_of_batches())
    seen = [strategy.gather(step(batch), axis=0) for batch in batches]
    assert rows_of(seen) == list(range(10))


def generator_of_rows():
    for row in range(10):
        yield {"x": np.float32(row), "label": row % 2}


def test_d11_a_generator_of_rows(runner, strategy):
    dataset = rx.data.from_iterable(generator_of_rows).batch(4)
    step = runner(lambda batch: strategy.run(lambda batch: batch["x"], args=(batch,)))
    for _ in range(2):
        batches = strategy.distribute_dataset(dataset)
        assert rows_of(strategy.gather(step(batch), axis=0) for batch in batches) == list(range(10))


def test_d11_a_generator_of_rows_is_sharded_without_loss():
    dataset = rx.data.from_iterable(lambda: (row["x"] for row in generator_of_rows()))
    shards = [rows_of(dataset.sharded(2, index, by="rows")) for index in range(2)]
    assert sorted(shards[0] + shards[1]) == list(range(10))


def test_d11_rows_that_are_not_batched_are_not_taken_for_batches(strategy):
    """They are batched, or refused with what to do; a dataset of ten steps they are not."""
    batches = strategy.distribute_dataset(generator_of_rows())
    with pytest.raises(rx.errors.InvalidArgumentError, match="not a global batch"):
        list(batches)


# --- the plan --------------------------------------------------------------------------------


def test_d13_the_plan_tells_which_replica_reads_which_row(strategy):
    batches = distributed(strategy, np.arange(100), 8)
    plan = batches.plan
    steps = promised(plan)
    assert len(steps) == 13
    assert steps[12] == [[96, 97], [98, 99]]
    assert flat(flat(steps)) == list(range(100))
    assert steps_of(strategy, batches) == steps
    assert "13 steps" in str(plan)


def test_d13_the_plans_of_two_processes_have_no_duplicates():
    both = plans(np.arange(100), global_batch_size=8)
    rows = [flat(flat(promised(plan))) for plan in both]
    assert len(rows[0]) == len(rows[1]) == 50
    assert sorted(rows[0] + rows[1]) == list(range(100))
    assert both[0].digest() == both[1].digest()
    assert "0, 1, 2, 3" in str(both[0])
    assert "4, 5, 6, 7" in str(both[1])


def test_d13_the_plan_of_a_shuffled_chain(strategy):
    dataset = rx.data.from_arrays(np.arange(100)).shuffle(seed=0).batch(8)
    batches = strategy.distribute_dataset(dataset)
    for epoch in range(2):
        steps = promised(batches.plan, epoch)
        assert sorted(flat(flat(steps))) == list(range(100))
        assert steps_of(strategy, batches) == steps
