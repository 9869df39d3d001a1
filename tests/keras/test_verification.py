"""`rx.verify` of a compiled Keras model: one call of `fit` with one global batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx


@pytest.fixture
def model():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    keras.utils.set_random_seed(0)
    with strategy.scope():
        made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        made.compile("sgd", "mse", metrics=["mae"])
    return strategy, made


def test_fit_is_compared_with_one_device_and_nothing_is_changed(model):
    strategy, made = model
    rows = np.random.default_rng(0).normal(size=(7, 5)).astype("float32")
    dataset = rx.data.from_arrays((rows[:, :3], rows[:, 3:])).batch(4)
    before = [np.asarray(v.value) for v in made.trainable_variables]

    report = rx.verify(strategy, made, None, strategy.distribute_dataset(dataset))

    assert report.ok, str(report)
    parity = [x for x in report.findings if x.check == "parity"]
    assert [x.status.value for x in parity] == ["passed", "passed"]  # and 2 + 1 rows
    assert made.trainable_variables[0].path in str(parity[0])
    for array, variable in zip(before, made.trainable_variables, strict=True):
        np.testing.assert_array_equal(array, np.asarray(variable.value))
        assert len(variable.value.devices()) == 2


def test_a_model_that_is_not_compiled_is_refused(model):
    strategy, _ = model
    with strategy.scope():
        bare = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

    with pytest.raises(rx.errors.ArgumentTypeError, match="not compiled"):
        rx.verify(strategy, bare, None, [])
