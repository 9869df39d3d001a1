"""No row is lost, none repeated, none moved: properties over sizes, replicas and pipelines."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicax as rx
from replicax.input import plan_input

SIZES = {
    "rows": st.integers(0, 60),
    "batch": st.integers(1, 17),
    "replicas": st.integers(1, 5),
    "pipelines": st.integers(1, 4),
    "shuffled": st.booleans(),
    "repeats": st.integers(1, 2),
}


def make(rows, batch, shuffled, repeats):
    """Row `i` is `i + 0.5`, so that a row is told from its number."""
    dataset = rx.data.from_arrays(np.arange(rows, dtype=np.float32) + 0.5)
    dataset = dataset.shuffle(seed=3) if shuffled else dataset
    return dataset.batch(batch).repeat(repeats) if repeats > 1 else dataset.batch(batch)


def plans(dataset, replicas, pipelines, **options):
    return [
        plan_input(dataset, replicas, rx.InputOptions(**options), pipelines, i)
        for i in range(pipelines)
    ]


def real_rows(batch):
    """The real rows of a step, one list a replica; the padding is checked."""
    (stacked,) = batch.stacked
    counts = [stacked.shape[1]] * len(stacked) if batch.rows is None else batch.rows.tolist()
    for part, count in zip(stacked, counts, strict=True):
        assert np.isin(part[count:], stacked).all()
    return [part[:count].tolist() for part, count in zip(stacked, counts, strict=True)]


def read(plan, epoch, start=0):
    """The rows of each step by its number."""
    return {after - 1: real_rows(batch) for after, batch in plan.read(epoch, start)}


def promised(plan, step, epoch):
    return [(ids + 0.5).tolist() for ids in plan.rows(step, epoch)]


@settings(max_examples=150)
@given(**SIZES, remainder=st.sampled_from(["mask", "drop"]), epoch=st.integers(0, 2))
def test_the_union_of_a_step_is_the_global_batch_of_one_device(
    rows, batch, replicas, pipelines, shuffled, repeats, remainder, epoch
):
    dataset = make(rows, batch, shuffled, repeats)
    one_device = [element.tolist() for element in dataset.open(epoch=epoch)]
    total = replicas * pipelines
    found = []
    for plan in plans(dataset, replicas, pipelines, policy="data", remainder=remainder):
        steps = read(plan, epoch)
        assert len(steps) == plan.num_steps
        assert all(steps[step] == promised(plan, step, epoch) for step in steps)
        found.append(steps)
    assert len({tuple(steps) for steps in found}) == 1  # the same steps on all pipelines
    for step, batch_of_one in enumerate(one_device):
        dropped = len(batch_of_one) % total if remainder == "drop" else 0
        expected = batch_of_one[: len(batch_of_one) - dropped]
        union = [row for steps in found for part in steps.get(step, []) for row in part]
        assert union == expected
    seen = Counter(row for steps in found for step in steps.values() for p in step for row in p)
    if remainder == "mask":
        assert seen == Counter({row + 0.5: repeats for row in range(rows)})


@settings(max_examples=75)
@given(**SIZES, policy=st.sampled_from(["off", "hint"]), epoch=st.integers(0, 2))
def test_streams_of_their_own_hold_the_rows_that_the_plan_promises(
    rows, batch, replicas, pipelines, shuffled, repeats, policy, epoch
):
    batch = max(batch, pipelines)
    dataset = make(rows, 1, shuffled, 1).map(lambda row: row[0])
    dataset = dataset.shard(rx.data.HINT).batch(batch).repeat(repeats)
    seen = Counter()
    for plan in plans(dataset, replicas, pipelines, policy=policy):
        steps = read(plan, epoch)
        assert list(steps) == list(range(plan.num_steps))
        assert all(steps[step] == promised(plan, step, epoch) for step in steps)
        seen += Counter(row for step in steps.values() for part in step for row in part)
    times = repeats * (pipelines if policy == "off" else 1)
    assert seen == Counter({row + 0.5: times for row in range(rows)})


@settings(max_examples=40)
@given(rows=SIZES["rows"], batch=SIZES["batch"], pipelines=SIZES["pipelines"], data=st.data())
def test_any_place_is_where_the_rows_after_it_are(rows, batch, pipelines, data):
    policy = data.draw(st.sampled_from(["data", "off"]))
    dataset = make(rows, max(batch, pipelines), shuffled=True, repeats=2)
    for plan in plans(dataset, 2, pipelines, policy=policy):
        steps = read(plan, 1)
        start = data.draw(st.integers(0, plan.num_steps))
        assert read(plan, 1, start) == {i: steps[i] for i in steps if i >= start}


@settings(max_examples=40)
@given(rows=st.integers(1, 60), batch=SIZES["batch"], replicas=SIZES["replicas"])
def test_error_refuses_exactly_what_does_not_divide(rows, batch, replicas):
    (plan,) = plans(make(rows, batch, False, 1), replicas, 1, remainder="error")
    if rows % replicas == 0 and (batch % replicas == 0 or rows <= batch):
        assert sum(len(part) for step in read(plan, 0).values() for part in step) == rows
        return
    with pytest.raises(rx.errors.InvalidArgumentError, match="cannot share evenly"):
        read(plan, 0)


# --- on devices ------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    rows=SIZES["rows"], batch=SIZES["batch"], replicas=SIZES["replicas"], prefetch=st.integers(0, 3)
)
def test_devices_hold_what_the_plan_promises(rows, batch, replicas, prefetch):
    strategy = rx.MirroredStrategy(jax.devices()[:replicas])
    dataset = strategy.distribute_dataset(
        make(rows, batch, shuffled=True, repeats=1), rx.InputOptions(prefetch=prefetch)
    )
    for epoch in range(2):
        steps = [[np.asarray(x).tolist() for x in strategy.local_results(b)] for b in dataset]
        assert steps == [promised(dataset.plan, step, epoch) for step in range(len(dataset))]


@pytest.mark.parametrize(("rows", "batch", "replicas"), [(19, 8, 3), (7, 17, 5), (9, 2, 4)])
def test_a_linear_model_trains_as_on_one_device(runner, rows, batch, replicas):
    random = np.random.default_rng(rows)
    x = random.normal(size=(rows, 3)).astype(np.float32)
    y = x @ np.float32([1.0, -2.0, 0.5])

    def train(replicas):
        strategy = rx.MirroredStrategy(jax.devices()[:replicas])
        with strategy.scope():
            w = rx.Variable(np.zeros(3, np.float32))

        def replica_step(batch):
            x, y = batch
            ctx = rx.get_replica_context()
            grads = x * (jnp.dot(x, w.value, precision="highest") - y)[:, None]
            w.assign_sub(0.1 * ctx.global_mean(grads))

        step = runner(lambda batch: strategy.run(replica_step, args=(batch,)))
        dataset = rx.data.from_arrays(x, y).shuffle(seed=1).batch(batch)
        dataset = strategy.distribute_dataset(dataset)
        for _ in range(2):
            for one in dataset:
                step(one)
        return np.asarray(w.value)

    np.testing.assert_allclose(train(replicas), train(1), rtol=0, atol=1e-6)
