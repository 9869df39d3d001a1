"""Keras on JAX: arithmetic of losses, clipping, accumulation; named after the reports."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

keras = pytest.importorskip("keras", reason="Keras is not installed")

pytestmark = pytest.mark.slow

X = np.arange(1, 5, dtype=np.float32)[:, None]
QUIET = {"batch_size": 4, "shuffle": False, "verbose": 0}


@pytest.fixture(scope="module")
def two():
    return rx.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture(scope="module")
def four():
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(4)])


def line(strategy, optimizer=None, *, regulariser=None, **options):
    """The model y = w * x, which starts at w = 1."""
    with strategy.scope():
        layer = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="ones", kernel_regularizer=regulariser
        )
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(optimizer or keras.optimizers.SGD(0.01), "mse", **options)
    return model


def weight(model):
    return pytest.approx(float(np.asarray(model.weights[0].value)[0, 0]), abs=1e-6)


def per_row(model, batch):
    return jnp.mean((model(batch[0]) - batch[1]) ** 2, axis=1)


def step_of(strategy, replica_step):
    return rx.function(lambda batch: strategy.run(replica_step, args=(batch,)))


def test_b1_losses_of_pixels_are_divided_by_pixels_too(two):
    pixels = np.arange(16, dtype=np.float32).reshape(4, 2, 2)
    with two.scope():
        model = keras.Sequential([keras.Input((2, 2)), keras.layers.Activation("linear")])
        model.compile(loss="mse")
    found = rx.keras.evaluate(model, pixels, np.zeros_like(pixels), batch_size=4, verbose=0)
    assert found == pytest.approx(np.mean(pixels**2), rel=1e-6)


def test_b2_b3_fit_and_a_loop_give_the_loss_and_weight_of_one_device(two):
    model = line(two)
    history = rx.keras.fit(model, X, 2 * X, **QUIET)
    assert history.history["loss"] == [pytest.approx(7.5, abs=1e-6)]
    assert weight(model) == 1.15

    model = line(two)
    optimizer, variables = model.optimizer, model.trainable_variables

    def replica_step(batch):
        ctx = rx.get_replica_context()

        def loss_fn():
            return jnp.mean(per_row(model, batch))  # a scalar mean of this replica's rows

        loss, gradients = rx.value_and_grad(loss_fn, variables)()
        rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients), variables)
        return ctx.all_reduce("mean", loss)

    (batch,) = two.distribute_dataset([(X, 2 * X)])
    assert float(step_of(two, replica_step)(batch)) == pytest.approx(7.5, abs=1e-6)
    assert weight(model) == 1.15


def test_b2_a_scalar_loss_of_an_uneven_batch_is_refused(two):
    model = line(two)
    (batch,) = two.distribute_dataset([(X[:3], 2 * X[:3])])
    with pytest.raises(rx.errors.UnusedMaskError):
        step_of(two, lambda batch: jnp.mean(per_row(model, batch)))(batch)


def test_b4_regularisation_counts_once(two):
    history = rx.keras.fit(line(two, regulariser=keras.regularizers.L2(0.5)), X, 2 * X, **QUIET)
    assert history.history["loss"] == [pytest.approx(8.0, abs=1e-6)]


def test_b6_a_local_gradient_is_that_of_the_local_loss(two):
    model = line(two)

    def replica_step(batch):
        loss = rx.value_and_grad(lambda: jnp.mean(per_row(model, batch)), model.trainable_variables)
        return loss()[1][0][0, 0]

    (batch,) = two.distribute_dataset([(X, 2 * X)])
    gradients = two.local_results(step_of(two, replica_step)(batch))
    assert [float(g) for g in gradients] == [-5.0, -25.0]


def test_b7_b10_metrics_are_those_of_numpy(four):
    rng = np.random.default_rng(0)
    scores = rng.permuted(np.tile(np.arange(5, dtype=np.float32), (10, 1)), axis=1)
    labels = rng.integers(0, 5, 10).astype(np.int32)
    with four.scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Activation("linear")])
        top = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy", top],
        )
    found = rx.keras.evaluate(model, scores, labels, batch_size=10, verbose=0, return_dict=True)
    chosen = scores[np.arange(10), labels]
    assert found["accuracy"] == pytest.approx(np.mean(chosen == 4), abs=1e-6)
    assert found["top"] == pytest.approx(np.mean(chosen >= 3), abs=1e-6)


def test_b11_tokens_are_counted_globally(two):
    def replica_step(batch):
        ctx = rx.get_replica_context()
        losses, tokens = batch
        return ctx.global_sum(losses) / ctx.global_sum(tokens)

    rows = rx.PerReplica([jnp.array([6.0]), jnp.array([10.0])])
    tokens = rx.PerReplica([jnp.array([3]), jnp.array([1])])
    assert float(step_of(two, replica_step)((rows, tokens))) == 4.0


def test_b13_weights_of_rows(two):
    weights = np.array([1, 0, 0, 3], np.float32)
    history = rx.keras.fit(line(two), X, 2 * X, sample_weight=weights, **QUIET)
    assert history.history["loss"] == [pytest.approx(12.25, abs=1e-5)]


@pytest.mark.parametrize("kind", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_j3_gradients_are_clipped_after_they_are_combined(two, kind):
    x, y = np.ones((2, 1), np.float32), np.array([[11], [0]], np.float32)
    with two.scope():
        optimizer = keras.optimizers.SGD(1.0, **{kind: 1.0})
    model = line(two, optimizer)
    rx.keras.fit(model, x, y, verbose=0)
    assert weight(model) == 2.0


def test_j4_accumulated_gradients_make_one_update(two):
    optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)
    with two.scope():
        rx.keras.adopt(optimizer)
    model = line(two, optimizer)
    rx.keras.fit(model, X, 2 * X, **{**QUIET, "batch_size": 2})
    assert weight(model) == 1.15
    assert int(model.optimizer.iterations) == 1


def test_j1_a_dynamic_loss_scale(two):
    def scaled():
        inner = keras.optimizers.SGD(0.01)
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0, dynamic_growth_steps=2)

    infinite = X.copy()
    infinite[3] = np.inf
    states = []
    for strategy in (rx.OneDeviceStrategy("cpu:0"), two):
        with strategy.scope():
            optimizer = scaled()
        model = line(strategy, optimizer)
        for rows in (X, infinite, X, X):
            rx.keras.fit(model, rows, 2 * X, **QUIET)
        scale = float(model.optimizer.dynamic_scale)
        states.append((np.asarray(model.weights[0].value).item(), scale))
    assert states[0] == pytest.approx(states[1], abs=1e-6)
    assert states[1][1] == 4.0  # halved once, doubled once


def test_l2_h11_fit_evaluate_predict_and_fit_again(two):
    model = line(two)
    for _ in range(2):
        rx.keras.fit(model, X, 2 * X, **QUIET)
        rx.keras.evaluate(model, X, 2 * X, batch_size=4, verbose=0)
        rx.keras.predict(model, X, batch_size=4, verbose=0)
    devices = {
        v.value.sharding.device_set == set(two.replica_mesh.devices) for v in model.variables
    }
    assert devices == {True}


def test_l4_each_device_holds_its_rows(four):
    (batch,) = four.distribute_dataset([np.zeros((8, 1), np.float32)]).get_jax_iterator()
    assert [shard.data.shape for shard in batch.addressable_shards] == [(2, 1)] * 4
    assert len({shard.device for shard in batch.addressable_shards}) == 4


def test_a6_uneven_rows_in_fit_evaluate_and_predict(four):
    x = np.arange(10, dtype=np.float32)[:, None] / 10
    model = line(four)
    rx.keras.fit(model, x, 2 * x, **{**QUIET, "batch_size": 8})
    w = float(np.asarray(model.weights[0].value)[0, 0])
    found = rx.keras.evaluate(model, x, 2 * x, batch_size=8, verbose=0)
    assert found == pytest.approx(np.mean(((w - 2) * x) ** 2), rel=1e-5)
    predicted = rx.keras.predict(model, x, batch_size=8, verbose=0)
    assert predicted.shape == (10, 1)
    assert predicted == pytest.approx(w * x, abs=1e-6)
