"""Metrics under strategies give what NumPy gives on the global batches, remainders included."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicax as rx

NUM_CLASSES = 3
BATCH = 6


@functools.cache
def mirrored(n):
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(n)])


@jax.jit
def cubed_error(y_true, y_pred):
    return (y_true - y_pred) ** 3


KINDS = {
    "sum": (rx.metrics.Sum, lambda m, b: m.update_state(b["x"], b["w"])),
    "mean": (rx.metrics.Mean, lambda m, b: m.update_state(b["x"])),
    "top_2": (
        functools.partial(rx.metrics.SparseCategoricalAccuracy, top_k=2),
        lambda m, b: m.update_state(b["labels"], b["scores"], b["w"]),
    ),
    "cubed": (
        functools.partial(rx.metrics.MeanOf, cubed_error),
        lambda m, b: m.update_state(b["x"], b["w"], sample_weight=b["w"]),
    ),
    "matrix": (
        functools.partial(rx.metrics.ConfusionMatrix, NUM_CLASSES),
        lambda m, b: m.update_state(b["labels"], b["predicted"], b["w"]),
    ),
    "auc": (
        functools.partial(rx.metrics.AUC, num_thresholds=11),
        lambda m, b: m.update_state(b["labels"] > 0, b["x"]),
    ),
}
SOME = "mean", "top_2"


class Evaluation:
    """Metrics in one step; `mean` is also read in it."""

    def __init__(self, strategy, *, names=tuple(KINDS), compiled=True):
        self.strategy = strategy
        with strategy.scope():
            self.metrics = {name: KINDS[name][0]() for name in names}
        self.step = rx.function(self.run) if compiled else self.run

    def run(self, batch):
        return self.strategy.run(self.replica_fn, args=(batch,))

    def replica_fn(self, batch):
        for name, metric in self.metrics.items():
            KINDS[name][1](metric, batch)
        return self.metrics["mean"].result()

    def reset(self):
        for metric in self.metrics.values():
            metric.reset_state()


def make_rows(rng, count):
    scores = rng.random((count, NUM_CLASSES)).astype(np.float32)
    return {
        "labels": rng.integers(0, NUM_CLASSES, count),
        "predicted": rng.integers(0, NUM_CLASSES, count),
        "scores": scores,
        "x": (rng.integers(0, 10, count) / 10 + 0.05).astype(np.float32),
        "w": rng.random(count).astype(np.float32),
    }


def expected_of(rows):
    """The same on all rows at once, in float64."""
    labels, scores, x, w = (rows[k] for k in ("labels", "scores", "x", "w"))
    x, w = np.float64(x), np.float64(w)
    best = np.argsort(-scores, axis=1)
    matrix = np.zeros((NUM_CLASSES, NUM_CLASSES))
    np.add.at(matrix, (labels, rows["predicted"]), w)
    ahead = (x[:, None] > x) + 0.5 * (x[:, None] == x)
    pairs = (labels > 0)[:, None] * (labels == 0)
    return {
        "sum": (x * w).sum(),
        "mean": x.mean(),
        "top_2": np.average((best[:, :2] == labels[:, None]).any(1), weights=w),
        "cubed": np.average((x - w) ** 3, weights=w),
        "matrix": matrix,
        "auc": (ahead * pairs).sum() / pairs.sum() if pairs.sum() else 0.0,
    }


def check(evaluation, batches):
    """Run the batches: every result is NumPy's, and in replica context it is the same number."""
    for batch in evaluation.strategy.distribute_dataset(batches):
        mean_of_replicas = evaluation.step(batch)
    rows = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    expected = expected_of(rows)
    for name, metric in evaluation.metrics.items():
        np.testing.assert_allclose(
            metric.result(), expected[name], rtol=1e-6, atol=1e-6, err_msg=name
        )
    assert float(mean_of_replicas) == float(evaluation.metrics["mean"].result())


@functools.cache
def evaluation_on_three():
    return Evaluation(mirrored(3))


# Two programs: 6 rows are 2 on each replica, 5 are 2, 2 and 1, and of 4 the last replica has none.
@settings(max_examples=6)
@given(st.lists(st.integers(4, BATCH), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_several_kinds_over_any_uneven_batches(counts, seed):
    """One evaluation over its life: each example resets what the one before has left."""
    rng = np.random.default_rng(seed)
    evaluation = evaluation_on_three()
    evaluation.reset()
    check(evaluation, [make_rows(rng, BATCH), *(make_rows(rng, n) for n in counts)])


@pytest.mark.parametrize("replicas", [2, 4])
def test_any_number_of_replicas(replicas):
    rng = np.random.default_rng(replicas)
    evaluation = Evaluation(mirrored(replicas), names=SOME)
    check(evaluation, [make_rows(rng, n) for n in (4, 1)])


def test_eager_with_a_replica_without_rows():
    rng = np.random.default_rng(0)
    evaluation = Evaluation(mirrored(2), names=SOME, compiled=False)
    check(evaluation, [make_rows(rng, n) for n in (2, 1)])


def simple(runner, strategy, metric, batches):
    """The result after a step for each batch, a tuple of what `update_state` takes."""
    step = runner(lambda batch: strategy.run(lambda b: metric.update_state(*b), args=(batch,)))
    for batch in strategy.distribute_dataset(batches):
        step(batch)
    return float(metric.result())


@pytest.mark.accelerator
def test_a8_rows_weigh_alike_not_batches(runner, strategy):
    """Batches of 4 rows, all right, and of 1, which is wrong: 0.8, not 0.5."""
    with strategy.scope():
        metric = rx.metrics.Accuracy()
    ones = np.ones(4, np.int32)
    assert simple(runner, strategy, metric, [(ones, ones), (ones[:1], ones[:1] * 0)]) == (
        pytest.approx(0.8)
    )


@pytest.mark.parametrize("replicas", [2, 4])
def test_b7_an_accuracy_is_no_more_than_1_on_several_replicas(replicas):
    strategy = mirrored(replicas)
    with strategy.scope():
        metric = rx.metrics.SparseCategoricalAccuracy()
    batch = np.arange(4), np.eye(4, dtype=np.float32)
    assert simple(rx.function, strategy, metric, [batch, batch]) == 1.0


def test_b10_a_top_k_accuracy_of_10_rows_on_4_replicas():
    strategy = mirrored(4)
    rng = np.random.default_rng(0)
    scores, labels = rng.random((10, 5)).astype(np.float32), rng.integers(0, 5, 10)
    with strategy.scope():
        metric = rx.metrics.SparseCategoricalAccuracy(top_k=2)
    right = (np.argsort(-scores, axis=1)[:, :2] == labels[:, None]).any(1)
    assert simple(rx.function, strategy, metric, [(labels, scores)]) == pytest.approx(right.mean())


@pytest.mark.parametrize("kind", [rx.OneDeviceStrategy, rx.CentralStorageStrategy])
def test_other_strategies(runner, kind):
    strategy = kind("cpu:0") if kind is rx.OneDeviceStrategy else kind(["cpu:0", "cpu:1"])
    with strategy.scope():
        metric = rx.metrics.Mean()
    rows = np.arange(5, dtype=np.float32)
    assert simple(runner, strategy, metric, [(rows[:2],), (rows[2:],)]) == 2.0


def test_an_update_does_not_communicate_and_a_result_in_replica_context_does(strategy):
    with strategy.scope():
        metric = rx.metrics.Mean()
    update = rx.function(lambda x: strategy.run(metric.update_state, args=(x,)))
    read = rx.function(lambda: strategy.run(metric.result))
    (batch,) = strategy.distribute_dataset([np.arange(3.0)])

    assert list(update.collectives(batch)) == []
    assert update.requested_collectives(batch) == ()
    assert [one.kind for one in read.collectives()] == ["all-reduce"]


def test_padding_does_not_count_whatever_was_computed_from_it(strategy):
    with strategy.scope():
        mean, total = rx.metrics.Mean(), rx.metrics.Sum()

    @rx.function
    def step(batch):
        def replica_fn(x):
            mask = rx.get_replica_context().example_mask
            undefined = jnp.where(mask, x, jnp.nan)
            mean.update_state(undefined, sample_weight=undefined)
            total.update_state(undefined)

        strategy.run(replica_fn, args=(batch,))

    for batch in strategy.distribute_dataset([np.float32([1, 2, 3])]):
        step(batch)
    assert float(mean.result()) == pytest.approx(14 / 6)
    assert float(total.result()) == 6.0
