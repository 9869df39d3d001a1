"""No row is lost, none repeated, none invisible: properties over sizes, replicas and pipelines."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import replicax as rx
from replicax.input import plan_input, rows_per_replica

SIZES = {
    "rows": st.integers(0, 60),
    "batch": st.integers(1, 17),
    "replicas": st.integers(1, 5),
    "pipelines": st.integers(1, 4),
    "seed": st.sampled_from([None, 0, 7]),
}
REMAINDER = st.sampled_from(["mask", "drop", "error"])


def tree(ids):
    """Rows, or one row, as a nested tree of which each leaf tells the number of the row."""
    return {"x": ids.astype(np.float32) + 0.5, "deep": [(ids.astype(np.int32),)]}


def shuffled(dataset, seed):
    return dataset if seed is None else dataset.shuffle(seed=seed)


CHAINS = {
    "batched": lambda data, seed, size: shuffled(data, seed).batch(size),
    "repeated": lambda data, seed, size: shuffled(data, seed).batch(size).repeat(2),
    "over epochs": lambda data, seed, size: shuffled(data, seed).repeat(2).batch(size),
    "a part": lambda data, seed, size: shuffled(data, seed).skip(3).take(20).batch(size),
    "full only": lambda data, seed, size: shuffled(data, seed).batch(size, drop_remainder=True),
    "batches shuffled": lambda data, seed, size: shuffled(data.batch(size), seed).prefetch(2),
    "cached": lambda data, seed, size: shuffled(data.cache(), seed).batch(size),
}
CHAIN = st.sampled_from(list(CHAINS))


def make(chain, rows, seed, size):
    return CHAINS[chain](rx.data.from_arrays(tree(np.arange(rows))), seed, size)


def times(chain, rows, size):
    """How often an epoch has a row, and how many rows that makes."""
    repeats = 2 if chain in {"repeated", "over epochs"} else 1
    total = {"a part": min(max(rows - 3, 0), 20), "full only": rows - rows % size}
    return repeats, total.get(chain, rows * repeats)


def plans(dataset, replicas, pipelines, **options):
    return [
        plan_input(dataset, replicas, rx.InputOptions(**options), pipelines, i)
        for i in range(pipelines)
    ]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def ids_of(batch):
    return batch["deep"][0][0].tolist()


def real_rows(batch):
    """The real rows of a step of a pipeline, one list a replica; the padding is checked."""
    leaves = batch.structure.unflatten(batch.stacked)
    ids = leaves["deep"][0][0]
    np.testing.assert_array_equal(leaves["x"], ids + 0.5)
    counts = [ids.shape[1]] * len(ids) if batch.rows is None else batch.rows.tolist()
    return [part[:count].tolist() for part, count in zip(ids, counts, strict=True)]


def read(plan, epoch=0, start=0):
    """What a pipeline really reads, by step, and whether it stopped at an uneven batch."""
    steps = {}
    try:
        for after, batch in plan.read(epoch, start):
            steps[after - 1] = batch
    except rx.errors.InvalidArgumentError:
        return steps, True
    return steps, False


def pieces(ids, replicas):
    """What each replica gets of a batch."""
    ends = list(itertools.accumulate(rows_per_replica(len(ids), replicas), initial=0))
    return [ids[first:last] for first, last in itertools.pairwise(ends)]


def kept(batches, total, remainder):
    """The rows of each step that `remainder` lets through, and whether there it stops."""
    steps = {}
    for step, ids in enumerate(batches):
        extra = len(ids) % total
        if remainder == "error" and extra:
            return steps, True
        rest = ids[: len(ids) - extra] if remainder == "drop" else ids
        if rest:
            steps[step] = rest
    return steps, False


def promised(plan, steps, epoch):
    """What the plan says of the first so many steps."""
    return [[ids.tolist() for ids in plan.rows(step, epoch)] for step in range(steps)]


# --- batches shared by all replicas ----------------------------------------------------------


@settings(max_examples=125)
@given(
    **SIZES,
    chain=CHAIN,
    policy=st.sampled_from(["auto", "data", "off", "file", "hint"]),
    remainder=REMAINDER,
    epoch=st.integers(0, 2),
)
@example(3, 2, 5, 4, None, "batched", "data", "drop", 0)  # steps without any row
@example(0, 1, 2, 2, 0, "over epochs", "auto", "error", 1)
def test_the_union_of_a_step_is_the_global_batch_of_one_device(
    rows, batch, replicas, pipelines, seed, chain, policy, remainder, epoch
):
    pipelines = pipelines if policy in {"auto", "data"} else 1  # alone, all policies are one
    dataset = make(chain, rows, seed, batch)
    one_device = [ids_of(element) for element in dataset.open(epoch=epoch)]
    repeats, count = times(chain, rows, batch)
    seen = Counter(flat(one_device))
    assert seen.total() == count
    assert all(0 <= row < rows and times <= repeats for row, times in seen.items())

    total = replicas * pipelines
    expected, stops = kept(one_device, total, remainder)
    ours = plans(dataset, replicas, pipelines, policy=policy, remainder=remainder)
    found, stopped = zip(*(read(plan, epoch) for plan in ours), strict=True)
    assert set(stopped) == {stops}
    for steps, plan in zip(found, ours, strict=True):
        assert list(steps) == list(expected)
        assert stops or plan.num_steps == len(expected)
        assert remainder == "drop" or plan.num_steps == len(one_device)
        assert promised(plan, len(steps), epoch) == [real_rows(one) for one in steps.values()]
    for step, ids in expected.items():
        batches = [steps[step] for steps in found]
        assert [part for one in batches for part in real_rows(one)] == pieces(ids, total)
        # One program: arrays of one shape, and either all count their rows or none does.
        assert {x.shape[:2] for one in batches for x in one.stacked} == {
            (replicas, math.ceil(len(ids) / total))
        }
        assert {one.rows is None for one in batches} == {len(ids) % total == 0}


# --- pipelines with streams of their own -----------------------------------------------------


def files(rows, count):
    """Files of different lengths, the rows of which follow one another."""
    ends = [rows * i * i // count**2 for i in range(count + 1)]

    def read_file(path):
        number = int(path.removeprefix("memory://"))
        yield from map(tree, np.arange(ends[number], ends[number + 1]))

    parts = [list(range(*bounds)) for bounds in itertools.pairwise(ends)]
    return rx.data.from_files([f"memory://{i}" for i in range(count)], read_file), parts


def streams(policy, rows, seed, pipelines, epoch):
    """Rows to be batched, and which of them each pipeline reads in an epoch, in order."""
    if policy == "file":
        dataset, parts = files(rows, pipelines + 2)
        return dataset, [flat(parts[i::pipelines]) for i in range(pipelines)]
    dataset = shuffled(rx.data.from_arrays(tree(np.arange(rows))), seed)
    order = [int(row["deep"][0][0]) for row in dataset.open(epoch=epoch)]
    if policy == "off":
        return dataset, [order] * pipelines
    return dataset.shard(rx.data.HINT), [order[i::pipelines] for i in range(pipelines)]


def cut_as_promised(stream, mine, even, replicas, remainder):
    """The rows of each replica by step of a pipeline's own stream, and whether it stops."""
    batches = [stream[at : at + mine] for at in range(0, len(stream), mine)]
    if remainder != "drop":
        steps, stops = kept(batches, replicas, remainder)
        return {step: pieces(ids, replicas) for step, ids in steps.items()}, stops
    # Every replica of every pipeline has as many rows, or none: there is no padding.
    steps = {i: pieces(ids[: even * replicas], replicas) for i, ids in enumerate(batches)}
    return {i: parts for i, parts in steps.items() if even and len(parts[-1]) == even}, False


@settings(max_examples=125)
@given(
    **SIZES,
    policy=st.sampled_from(["off", "file", "hint"]),
    remainder=REMAINDER,
    repeats=st.integers(1, 2),
    epoch=st.integers(0, 2),
)
@example(5, 5, 2, 2, None, "off", "drop", 1, 0)
def test_streams_of_their_own_hold_what_is_promised(
    rows, batch, replicas, pipelines, seed, policy, remainder, repeats, epoch
):
    pipelines = max(pipelines, 2)
    drawn = [
        streams(policy, rows, seed, pipelines, epoch * repeats + again) for again in range(repeats)
    ]
    dataset = drawn[0][0].repeat(repeats).batch(batch)
    own = [flat(parts[i] for _, parts in drawn) for i in range(pipelines)]
    readers = pipelines if policy == "off" else 1
    assert Counter(flat(own)) == dict.fromkeys(range(rows), readers * repeats)

    check_streams(dataset, own, replicas, policy, remainder, epoch)


@settings(max_examples=50)
@given(**SIZES, chain=CHAIN, remainder=REMAINDER, epoch=st.integers(0, 2))
def test_off_reads_on_every_pipeline_what_one_device_reads(
    rows, batch, replicas, pipelines, seed, chain, remainder, epoch
):
    dataset = make(chain, rows, seed, batch)
    one_device = flat(ids_of(element) for element in dataset.open(epoch=epoch))
    own = [one_device] * max(pipelines, 2)
    check_streams(dataset, own, replicas, "off", remainder, epoch)


def check_streams(dataset, own, replicas, policy, remainder, epoch):
    """Each pipeline reads its own stream of rows, in shares of the dataset's batches."""
    pipelines, batch = len(own), dataset.batch_size
    options = {"policy": policy, "remainder": remainder}
    if batch < pipelines:
        with pytest.raises(rx.errors.InvalidArgumentError, match="cannot be shared out"):
            plans(dataset, replicas, pipelines, **options)
        return
    share = math.ceil(math.ceil(batch / pipelines) / replicas)
    even = batch // (pipelines * replicas)
    for i, plan in enumerate(plans(dataset, replicas, pipelines, **options)):
        mine = len(range(i, batch, pipelines))  # all of them together: a global batch
        expected, stops = cut_as_promised(own[i], mine, even, replicas, remainder)
        steps, stopped = read(plan, epoch)
        assert stopped == stops
        assert {step: real_rows(one) for step, one in steps.items()} == expected
        if policy == "file":  # Nobody knows how many rows the files have.
            assert plan.rows(0) is plan.num_steps is None
        else:
            assert promised(plan, len(steps), epoch) == list(expected.values())
            assert stops or plan.num_steps == len(expected)
        # One program: arrays of one shape on all pipelines.
        shapes = {x.shape[:2] for one in steps.values() for x in one.stacked}
        assert shapes <= {(replicas, even if remainder == "drop" else share)}
        assert all(one.rows is None for one in steps.values()) or remainder != "drop"


@settings(max_examples=40)
@given(**SIZES, policy=st.sampled_from(["data", "off", "hint", "file"]), data=st.data())
def test_any_place_is_where_the_rows_after_it_are(
    rows, batch, replicas, pipelines, seed, policy, data
):
    rows_of, _ = streams(policy, rows, seed, pipelines, 0)
    dataset = rows_of.repeat(2).batch(max(batch, pipelines))
    for plan in plans(dataset, replicas, pipelines, policy=policy):
        steps, _ = read(plan, 1)
        start = data.draw(st.integers(0, len(steps)))
        found, _ = read(plan, 1, start)
        assert {at: real_rows(one) for at, one in found.items()} == {
            at: real_rows(one) for at, one in steps.items() if at >= start
        }


@pytest.mark.parametrize("stage", ["take", "skip"])
def test_a_part_of_all_files_is_not_a_part_of_each_pipelines_files(stage):
    dataset, _ = files(20, 4)
    dataset = getattr(dataset, stage)(7).batch(4)
    one_device = [ids_of(element) for element in dataset.open()]
    ours = plans(dataset, 1, 2)
    found = [read(plan)[0] for plan in ours]
    assert [plan.policy.name for plan in ours] == ["DATA"] * 2
    assert [[i for steps in found for i in real_rows(steps[at])[0]] for at in found[0]] == (
        one_device
    )
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"After `\.take` or `\.skip`"):
        plans(dataset, 1, 2, policy="file")


# --- sources that number no rows -------------------------------------------------------------


class Loop:
    """An iterable without a length, as a user may write it."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return iter(self._batches)


def generator_function(batches):
    def generate():
        yield from batches

    return generate


SOURCES = {
    "list": lambda batches: batches,
    "iterable": Loop,
    "iterator": iter,
    "generator function": generator_function,
    "rx.data": rx.data.from_iterable,
    "rx.data iterable": lambda batches: rx.data.from_iterable(Loop(batches)).prefetch(),
    "rx.data cached": lambda batches: rx.data.from_iterable(Loop(batches)).cache(),
}


@settings(max_examples=75)
@given(
    sizes=st.lists(st.integers(0, 9), max_size=6),
    replicas=SIZES["replicas"],
    pipelines=SIZES["pipelines"],
    source=st.sampled_from(list(SOURCES)),
    remainder=REMAINDER,
)
@example([0, 0], 2, 2, "list", "mask")
@example([1, 4, 1], 2, 1, "list", "drop")
@example([1, 4, 1], 2, 1, "rx.data", "drop")
def test_batches_of_any_sizes_are_kept_as_they_are(sizes, replicas, pipelines, source, remainder):
    ends = list(itertools.accumulate(sizes, initial=0))
    ids = [np.arange(first, last) for first, last in itertools.pairwise(ends)]
    expected, stops = kept([part.tolist() for part in ids], replicas * pipelines, remainder)
    ours = [
        plan_input(SOURCES[source]([tree(part) for part in ids]), replicas, options, pipelines, i)
        for i in range(pipelines)
        for options in [rx.InputOptions(remainder=remainder)]
    ]
    found, stopped = zip(*(read(plan) for plan in ours), strict=True)
    assert set(stopped) == {stops}
    assert {
        step: flat(flat(real_rows(steps[step])) for steps in found) for step in found[0]
    } == expected
    for plan in ours:
        assert plan.num_steps in {None, len(expected)} or 0 in sizes or stops
        assert not expected or plan.rows(0) is None  # the source knows of batches, not of rows


# --- on devices ------------------------------------------------------------------------------


@functools.cache
def strategy_of(replicas):
    return rx.MirroredStrategy(jax.devices()[:replicas])


def parts(strategy, batch):
    """The rows of each replica on its device."""
    ids = batch["deep"][0][0]
    replicas, size = ids.stacked.shape[:2]
    counts = [size] * replicas if ids.rows is None else np.asarray(ids.rows)
    shards = sorted(ids.stacked.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    assert [shard.device for shard in shards] == list(strategy.replica_mesh.devices)
    return [
        np.asarray(shard.data)[0, :count].tolist()
        for shard, count in zip(shards, counts, strict=True)
    ]


@settings(max_examples=25)
@given(
    rows=SIZES["rows"],
    batch=SIZES["batch"],
    replicas=SIZES["replicas"],
    seed=SIZES["seed"],
    chain=CHAIN,
    remainder=st.sampled_from(["mask", "drop"]),
    prefetch=st.integers(0, 3),
    stop=st.integers(1, 4),
)
def test_devices_hold_what_the_plan_promises(
    rows, batch, replicas, seed, chain, remainder, prefetch, stop
):
    strategy = strategy_of(replicas)
    options = rx.InputOptions(prefetch=prefetch, remainder=remainder)
    dataset = strategy.distribute_dataset(make(chain, rows, seed, batch), options)
    for epoch in range(2):
        batches = iter(dataset)
        # A loop that ends early, and another one that goes on.
        taken = itertools.chain(itertools.islice(batches, stop), batches)
        steps = [parts(strategy, one) for one in taken]
        assert steps == promised(dataset.plan, len(dataset), epoch)


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(0, 4), max_size=12),
    replicas=st.integers(1, 4),
    mode=st.sampled_from(["per_worker", "per_replica"]),
    prefetch=st.sampled_from([0, 2]),
    is_once=st.booleans(),
)
def test_the_batches_of_a_function_are_dealt_out_once_each(
    sizes, replicas, mode, prefetch, is_once
):
    ends = list(itertools.accumulate(sizes, initial=0))
    ids = [np.arange(first, last) for first, last in itertools.pairwise(ends)]

    def dataset_fn(context):
        mine = ids[context.input_pipeline_id :: context.num_input_pipelines]
        return (iter if is_once else list)([tree(one) for one in mine])

    strategy = strategy_of(replicas)
    options = rx.InputOptions(replication_mode=mode, prefetch=prefetch)
    dataset = strategy.distribute_datasets_from_function(dataset_fn, options)
    found = [parts(strategy, next(iter(dataset)))] if is_once and sum(sizes) else []
    found += [parts(strategy, one) for one in dataset]  # goes on, or is a pass of its own

    rounds = [ids[at : at + replicas] for at in range(0, len(ids), replicas)]
    expected = [[*map(list, one), *[[]] * (replicas - len(one))] for one in rounds]
    assert found == [one for one in expected if any(one)]
