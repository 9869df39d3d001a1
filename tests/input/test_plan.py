"""Which pipeline reads what: plans for several pipelines, without any device."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

import replicax as rx
from replicax.input import AutoShardPolicy, plan_input


def plans(dataset, pipelines, replicas=2, **options):
    """The plan of each pipeline."""
    return [
        plan_input(dataset, replicas, rx.InputOptions(**options), pipelines, i)
        for i in range(pipelines)
    ]


def ids(plan, step, epoch=0):
    return [part.tolist() for part in plan.rows(step, epoch)]


def read(plan, epoch=0, start=0):
    """The rows that a pipeline really reads, by step: one list a replica."""
    found = []
    for _, batch in plan.read(epoch, start):
        (stacked,) = batch.stacked
        counts = [stacked.shape[1]] * len(stacked) if batch.rows is None else batch.rows
        found.append([part[:count].tolist() for part, count in zip(stacked, counts, strict=True)])
    return found


@pytest.fixture
def files(tmp_path):
    """A function: a dataset of `count` files with three rows each, batched."""

    def make(count, batch_size=4):
        paths = []
        for number in range(count):
            paths.append(tmp_path / f"part-{number}")
            paths[-1].write_text("".join(f"{3 * number + i}\n" for i in range(3)))
        dataset = rx.data.from_files([str(path) for path in paths], read_numbers)
        return dataset if batch_size is None else dataset.batch(batch_size)

    return make


def read_numbers(path):
    with Path(path).open(encoding="utf-8") as lines:
        yield from (np.int32(line) for line in lines)


# --- one pipeline ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["off", "auto", "file", "data", "hint"])
def test_one_pipeline_shares_nothing_and_warns_of_nothing(policy, caplog):
    plan = plan_input(np.arange(6), 2, rx.InputOptions(global_batch_size=4, policy=policy))
    assert plan.policy is AutoShardPolicy.OFF
    assert plan.reason == "one input pipeline reads everything"
    assert read(plan) == [[[0, 1], [2, 3]], [[4], [5]]]
    assert caplog.records == []


def test_a_plan_is_read_before_the_data():
    def batches():
        raise AssertionError("read")
        yield

    plan = plan_input(batches(), 2)
    assert (plan.global_batch_size, plan.num_steps, plan.rows(0)) == (None, None, None)


def test_a_plan_is_a_table():
    plan = plan_input(np.arange(7), 2, rx.InputOptions(global_batch_size=4))
    lines = str(plan).splitlines()
    assert lines[:3] == [
        "global batch       4 rows",
        "replica's share    2 rows",
        "steps of an epoch  2 steps",
    ]
    assert lines[-3:] == ["replica  rows of step 0", "      0  0, 1", "      1  2, 3"]


def test_the_table_of_an_unknown_dataset_says_so():
    assert "steps of an epoch  unknown" in str(plan_input(iter([]), 2))


@pytest.mark.parametrize("step", [2, -1])
def test_a_step_that_is_not_there_is_refused(step):
    plan = plan_input(np.arange(7), 2, rx.InputOptions(global_batch_size=4))
    with pytest.raises(rx.errors.OutOfRangeError, match=f"no step {step}"):
        plan.rows(step)


@pytest.mark.parametrize(("replicas", "pipelines", "mine"), [(0, 1, 0), (1, 0, 0), (1, 2, 2)])
def test_pipelines_that_are_not_there_are_refused(replicas, pipelines, mine):
    with pytest.raises(rx.errors.InvalidArgumentError, match="no input pipeline"):
        plan_input(np.arange(3), replicas, None, pipelines, mine)


@pytest.mark.parametrize(("rows", "replicas", "steps"), [(9, 2, 1), (10, 2, 2), (11, 4, 1)])
def test_steps_count_what_drop_leaves(rows, replicas, steps):
    options = rx.InputOptions(global_batch_size=8, remainder="drop")
    plan = plan_input(np.arange(rows), replicas, options)
    assert plan.num_steps == steps == len(read(plan))


def test_steps_of_repeated_remainders_count_what_drop_leaves():
    dataset = rx.data.from_arrays(np.arange(5)).batch(4).repeat(3)
    plan = plan_input(dataset, 2, rx.InputOptions(remainder="drop"))
    assert plan.num_steps == len(read(plan)) == 3


def test_the_plan_has_no_step_that_drop_leaves_out():
    plan = plan_input(np.arange(9), 2, rx.InputOptions(global_batch_size=4, remainder="drop"))
    assert [ids.tolist() for ids in plan.rows(1)] == [[4, 5], [6, 7]]
    with pytest.raises(rx.errors.OutOfRangeError, match=r"no step 2.*\n.*has 2 steps"):
        plan.rows(2)


def test_steps_that_drop_leaves_out_in_between_have_no_number():
    """Batches are shuffled: the one row that is too few comes at another place each epoch."""
    dataset = rx.data.from_arrays(np.arange(17)).batch(4).shuffle(seed=3)
    options = rx.InputOptions(remainder="drop")
    plan = plan_input(dataset, 2, options)
    places = set()
    for epoch in range(4):
        batches = [batch.stacked[0].ravel().tolist() for _, batch in plan.read(epoch, 0)]
        promised = [np.concatenate(plan.rows(i, epoch)).tolist() for i in range(plan.num_steps)]
        assert promised == batches
        places.add([len(batch) for batch in dataset.open(epoch=epoch)].index(1))
    assert len(places) > 1


# --- several pipelines -----------------------------------------------------------------------


def test_data_gives_each_pipeline_its_rows_of_every_global_batch():
    first, second = plans(np.arange(10), 2, global_batch_size=6, policy="data")
    assert read(first) == [[[0, 1], [2, 3]], [[6], [7]]]
    assert read(second) == [[[4, 5], []], [[8], [9]]]
    assert [ids(second, step) for step in range(2)] == read(second)
    assert first.per_replica_batch_size == 2


def test_arrays_of_one_shape_everywhere():
    # Pipeline 0 is full and pipeline 1 is not: both count their rows, and run one program.
    batches = [next(plan.read(0, 0))[1] for plan in plans(np.arange(5), 2, policy="data")]
    assert [batch.stacked[0].shape for batch in batches] == [(2, 2), (2, 2)]
    assert [batch.rows.tolist() for batch in batches] == [[2, 2], [1, 0]]


def test_off_reads_everything_on_every_pipeline():
    for plan in plans(np.arange(6), 2, global_batch_size=4, policy="off"):
        assert plan.policy is AutoShardPolicy.OFF
        assert read(plan) == [[[0], [1]], [[2], [3]], [[4], [5]]]
        assert plan.num_steps == 3
        assert [ids(plan, step) for step in range(3)] == read(plan)


def test_off_with_batches_of_unknown_size_takes_them_whole():
    for plan in plans([np.arange(4), np.arange(2)], 2, policy="off"):
        assert read(plan) == [[[0, 1], [2, 3]], [[0], [1]]]


def test_file_gives_each_pipeline_its_own_files(files):
    found = [read(plan) for plan in plans(files(4), 2, policy="file")]
    rows = [sorted(np.concatenate([np.concatenate(s) for s in one]).tolist()) for one in found]
    assert rows == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]
    assert all(sum(map(len, step)) == 2 for one in found for step in one)


def test_a_global_batch_over_files_has_its_size_where_it_does_not_divide(files):
    sizes = [
        [sum(map(len, step)) for step in read(plan)]
        for plan in plans(files(6, batch_size=5), 2, replicas=1, policy="file")
    ]
    assert sizes == [[3, 3, 3], [2, 2, 2, 2, 1]]


def test_auto_takes_files_where_there_are_enough(files, caplog):
    plan = plans(files(2), 2)[0]
    assert plan.policy is AutoShardPolicy.FILE
    assert "2 files for 2 pipelines" in plan.reason
    assert caplog.records == []


@pytest.mark.parametrize(
    ("count", "size", "pipelines", "why"),
    [
        (1, 4, 2, "1 file is too few for 2 pipelines"),
        (3, 2, 3, "batches of 2 rows are too small for 3 pipelines"),
        (3, None, 2, "the batch size is unknown"),
    ],
)
def test_auto_falls_back_to_data_with_one_notice(files, caplog, count, size, pipelines, why):
    with caplog.at_level(logging.WARNING, logger="replicax"):
        plan = plan_input(files(count, size), 2, None, pipelines, 0)
    assert plan.policy is AutoShardPolicy.DATA
    assert why in plan.reason
    assert [why in record.getMessage() for record in caplog.records] == [True]


def test_auto_without_files_is_data():
    plan = plans(np.arange(4), 2)[0]
    assert plan.policy is AutoShardPolicy.DATA
    assert plan.reason.startswith("the dataset is not made of files")


def test_fewer_files_than_pipelines_are_an_error_with_both_counts(files):
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"2 files cannot.*3 input pipelines"):
        plans(files(2), 3, policy="file")


def test_no_files_are_an_error():
    with pytest.raises(rx.errors.InvalidArgumentError, match="not made of files"):
        plans(np.arange(4), 2, policy="file")


def test_batches_smaller_than_the_pipelines_are_an_error():
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"batch of 2 rows.*3 input pipelines"):
        plans(np.arange(4), 3, global_batch_size=2, policy="off")


def test_hint_cuts_where_it_stands():
    dataset = rx.data.from_arrays(np.arange(8)).shard(rx.data.HINT).batch(4)
    found = [read(plan) for plan in plans(dataset, 2, replicas=1, policy="hint")]
    assert found == [[[[0, 2]], [[4, 6]]], [[[1, 3]], [[5, 7]]]]


def test_hint_without_a_hint_is_an_error():
    with pytest.raises(rx.errors.InvalidArgumentError, match="holds no hint"):
        plans(np.arange(4), 2, policy="hint")


@pytest.mark.parametrize("policy", ["auto", "data", "file", "hint"])
def test_a_shard_is_not_sharded_again(policy):
    shard = rx.data.from_arrays(np.arange(8)).shard(2, 0).batch(2)
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"a shard already.*shard"):
        plans(shard, 2, policy=policy)


def test_a_shard_is_read_as_it_is_where_nothing_is_shared_out():
    shard = rx.data.from_arrays(np.arange(8)).shard(2, 1).batch(2)
    assert read(plan_input(shard, 2)) == [[[1], [3]], [[5], [7]]]
    assert read(plans(shard, 2, replicas=1, policy="off")[1]) == [[[1]], [[3]], [[5]], [[7]]]


# --- agreement -------------------------------------------------------------------------------


def test_pipelines_agree_by_digest():
    first, second = plans(np.arange(10), 2, global_batch_size=6)
    assert first.digest() == second.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"global_batch_size": 5},
        {"remainder": "drop"},
        {"policy": "off"},
    ],
    ids=str,
)
def test_another_plan_has_another_digest(change):
    options = {"global_batch_size": 6}
    assert (
        plans(np.arange(10), 2, **options)[0].digest()
        != plans(np.arange(10), 2, **options | change)[0].digest()
    )


def test_another_seed_has_another_digest():
    rows = rx.data.from_arrays(np.arange(10))
    first, second = (plan_input(rows.shuffle(seed=i).batch(4), 2).digest() for i in range(2))
    assert first != second


@pytest.mark.parametrize("policy", ["off", "data", "hint"])
def test_what_workers_have_in_common_is_json_and_the_same(policy):
    dataset = rx.data.from_arrays(np.arange(9)).shard(rx.data.HINT).batch(4)
    first, second, third = (plan.common_facts() for plan in plans(dataset, 3, policy=policy))
    assert first == second == third == json.loads(json.dumps(first))


def test_what_a_position_depends_on_is_json_without_replicas():
    facts = [plan_input(np.arange(9), n).source_facts() for n in (1, 3)]
    assert facts[0] == facts[1] == json.loads(json.dumps(facts[0]))
