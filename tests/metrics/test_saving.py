"""Metrics in checkpoints: alone, as attributes, and on other numbers of replicas."""

from __future__ import annotations

import numpy as np
import pytest

import replicax as rx


@pytest.fixture(scope="module")
def three():
    return rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])


class Training:
    def __init__(self, strategy):
        with strategy.scope():
            self.metrics = {"loss": rx.metrics.Mean("loss")}
            self.matrix = rx.metrics.ConfusionMatrix(2)


class Doubled(rx.metrics.Mean):
    """One of a user's own."""

    def __init__(self, scale):
        super().__init__("doubled")
        self.scale = scale
        self.inner = rx.metrics.Sum("inner")


def checkpoint(**objects):
    return rx.checkpoint.Checkpoint(**objects)


def test_it_goes_on_with_another_number_of_replicas(strategy, three, tmp_path):
    """A count beyond 2**24 keeps what float32 rounds off, each replica's as far as it can."""
    saved = Training(strategy)
    many = rx.PerReplica([np.float32([2**24, 3.0]), np.float32([2**24, 2.0])])
    saved.metrics["loss"].count.assign(many)
    saved.metrics["loss"].total.assign(many)
    saved.matrix.total.assign(np.float32([[[1, 2], [3, 4]], [[0, 0], [0, 0]]]))
    checkpoint(training=saved).save(tmp_path)

    for restored in (Training(three), Training(rx.OneDeviceStrategy("cpu:0"))):
        checkpoint(training=restored).restore(tmp_path).assert_consumed()
        loss = restored.metrics["loss"]
        assert np.float64(loss.count.value).sum() == 2**25 + 5
        assert float(loss.result()) == 1.0
        assert restored.matrix.result().tolist() == [[1, 2], [3, 4]]


def test_its_options_are_no_state(tmp_path):
    saved, restored = rx.metrics.BinaryAccuracy(), rx.metrics.BinaryAccuracy(threshold=0.9)
    saved.update_state([1, 0], [0.7, 0.2])
    checkpoint(metric=saved).save(tmp_path)
    checkpoint(metric=restored).restore(tmp_path).assert_consumed()

    assert float(restored.result()) == 1.0
    assert restored.threshold == 0.9


def test_one_of_ones_own_with_another_inside(tmp_path):
    saved, restored = Doubled(2), Doubled(3)
    saved.update_state([4.0])
    saved.inner.update_state([5.0])
    checkpoint(metric=saved).save(tmp_path)
    checkpoint(metric=restored).restore(tmp_path).assert_consumed()

    assert (float(restored.result()), float(restored.inner.result())) == (4.0, 5.0)
    assert restored.scale == 3


def test_another_number_of_classes_is_refused(tmp_path):
    checkpoint(matrix=rx.metrics.ConfusionMatrix(2)).save(tmp_path)
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"matrix\.total"):
        checkpoint(matrix=rx.metrics.ConfusionMatrix(3)).restore(tmp_path)
