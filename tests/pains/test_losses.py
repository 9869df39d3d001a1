"""Loss, gradient and metric arithmetic; precision, clipping and accumulation.

Groups B, J and L of the known pains, as far as they are about steps of JAX. Each test is named
after its report and uses the report's numbers. B14, workers with different numbers of rows, is a
check of two workers (`tests/multi_worker`); B7 for metrics of every kind is in `tests/metrics`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

X = np.arange(1, 5, dtype=np.float32)


def context():
    return rx.get_replica_context()


# Jitted, because the eager runner compiles each operation by itself for each device and shape.
@jax.jit
def line_errors(w, x):
    """f32[B], squared errors of a line through the origin; the right slope is 2."""
    return (w * x - 2.0 * x) ** 2


def halves(strategy, rows):
    """One batch of two replicas."""
    (batch,) = strategy.distribute_dataset([rows])
    return batch


def weight(strategy, start=1.0):
    with strategy.scope():
        return rx.Variable(start, name="w")


def descent(w, loss, rate):
    """One step of SGD on the reduced gradient; the loss is returned."""
    value, gradients = rx.value_and_grad(loss, [w])()
    (gradient,) = context().all_reduce("mean", gradients)
    w.assign_sub(rate * gradient)
    return value


def test_b1_a_loss_of_pixels_is_divided_by_pixels(run, strategy):
    pixels = np.arange(16, dtype=np.float32).reshape(4, 2, 2)

    mean = run(lambda x: jnp.mean(context().global_mean(x**2)), halves(strategy, pixels))

    assert float(mean) == np.mean(pixels**2)


def test_b2_the_mean_loss_of_a_replica_is_neither_divided_nor_multiplied(run, strategy):
    w = weight(strategy)

    def replica_step(x):
        return descent(w, lambda: jnp.mean(line_errors(w.value, x)), 0.01)

    losses = run(replica_step, halves(strategy, X))

    assert np.mean(losses.values) == 7.5
    assert float(w) == pytest.approx(1.15)


def test_b2_global_mean_is_the_loss_of_one_device(run, strategy):
    w = weight(strategy)

    def replica_step(x):
        return descent(w, lambda: context().global_mean(line_errors(w.value, x)), 0.01)

    assert float(run(replica_step, halves(strategy, X))) == 7.5
    assert float(w) == pytest.approx(1.15)


def test_b4_a_regulariser_counts_once(run, strategy):
    w = weight(strategy)

    def replica_step(x):
        def loss():
            return context().global_mean(line_errors(w.value, x)) + 0.5 * w.value**2

        return descent(w, loss, 0.01)

    assert float(run(replica_step, halves(strategy, X))) == 8.0
    assert float(w) == pytest.approx(1.15 - 0.01)


def test_b6_the_gradient_of_a_local_mean_is_that_gradient(run, strategy):
    def replica_step(x):
        local = jax.grad(lambda w: jnp.mean(line_errors(w, x)))(jnp.float32(1.0))
        return local, context().all_reduce("mean", local)

    local, combined = run(replica_step, halves(strategy, X))

    assert [float(x) for x in local.values] == [-2 * 2.5, -2 * 12.5]
    assert float(combined) == -15.0


def test_b7_an_accuracy_is_at_most_one(runner, strategy):
    labels = np.arange(8) % 3
    with strategy.scope():
        accuracy = rx.metrics.SparseCategoricalAccuracy()
    step = runner(
        lambda y: strategy.run(lambda y: accuracy.update_state(y, jax.nn.one_hot(y, 3)), args=(y,))
    )

    step(halves(strategy, labels))

    assert float(accuracy.result()) == 1.0


@pytest.mark.slow
def test_b10_a_top_k_accuracy_on_four_devices(runner):
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(4)])
    scores = np.random.default_rng(0).normal(size=(10, 5)).astype(np.float32)
    labels = np.arange(10) % 5
    with strategy.scope():
        metric = rx.metrics.SparseCategoricalAccuracy(top_k=2)
    step = runner(lambda batch: strategy.run(metric.update_state, args=batch))

    step(halves(strategy, (labels, scores)))

    best = np.argsort(scores, axis=1)[:, -2:]
    assert float(metric.result()) == pytest.approx(np.mean((best == labels[:, None]).any(axis=1)))


def test_b11_tokens_are_counted_globally(run, strategy):
    # Replica 0: a sum of 6 over 3 tokens; replica 1: one of 10 over 1.
    losses = np.array([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]], np.float32)
    mask = np.array([[1, 1, 1], [1, 0, 0]], np.float32)

    def replica_step(losses, mask):
        def loss(scale):
            ctx = context()
            total = ctx.global_sum(jnp.sum(scale * losses * mask, axis=1))
            return total / ctx.global_sum(jnp.sum(mask, axis=1))

        value, gradient = jax.value_and_grad(loss)(jnp.float32(1.0))
        return value, context().all_reduce("mean", gradient)

    value, gradient = run(replica_step, *halves(strategy, (losses, mask)))

    assert (float(value), float(gradient)) == (4.0, 4.0)


def test_b11_also_in_micro_batches(run, strategy):
    losses = np.array([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]], np.float32)
    mask = np.array([[1, 1, 1], [1, 0, 0]], np.float32)

    def replica_step(losses, mask):
        return rx.accumulate(
            lambda scale, rows: (scale * rows[0], rows[1]), (losses, mask), 2, params=1.0
        )

    value, gradient = run(replica_step, *halves(strategy, (losses, mask)))

    assert (float(value), float(gradient)) == (4.0, 4.0)


def test_b13_weights_of_rows_are_part_of_the_split(run, strategy):
    weights = np.array([1, 0, 0, 3], np.float32)

    def replica_step(x, weights):
        return context().global_mean(weights * line_errors(1.0, x))

    assert float(run(replica_step, *halves(strategy, (X, weights)))) == 12.25


@pytest.mark.slow
@pytest.mark.parametrize("overflow_at", [None, 1])
def test_j1_dynamic_loss_scaling_on_replicas(strategy, overflow_at):
    """In float16, compiled: the weights of one device, also where a step is skipped."""

    def train(strategy):
        w = weight(strategy)
        with strategy.scope():
            optimizer = rx.Optimizer(optax.adam(0.1), [w])
            scale = rx.precision.LossScale(2.0**10, growth_steps=2)

        @rx.function
        def step(batch):
            def replica_step(x):
                def loss():
                    half = rx.precision.Policy("mixed_float16").to_compute(w.value)
                    return scale.multiply(context().global_mean((half * x - 2 * x) ** 2))

                _, gradients = rx.value_and_grad(loss, [w])()
                gradients = context().all_reduce("mean", gradients)
                return scale.apply_gradients(optimizer, gradients)

            return strategy.run(replica_step, args=(batch,))

        applied = []
        for number in range(4):
            rows = X.astype(np.float16)
            if number == overflow_at:
                rows[-1] = 6e4  # Only the last replica sees it.
            applied.append(bool(step(halves(strategy, rows))))
        return float(w), float(scale.value), applied

    mine, alone = train(strategy), train(rx.OneDeviceStrategy("cpu:4"))

    assert mine[0] == pytest.approx(alone[0], abs=1e-3)
    assert mine[1:] == alone[1:]
    assert mine[2] == [number != overflow_at for number in range(4)]


def test_j3_clipping_acts_on_the_reduced_gradient(run, strategy):
    w = weight(strategy)
    x, y = np.ones(2, np.float32), np.array([11.0, 0.0], np.float32)

    def replica_step(x, y):
        def loss():
            return context().global_mean((w.value * x - y) ** 2)

        _, gradients = rx.value_and_grad(loss, [w])()
        gradients = context().all_reduce("mean", gradients)
        (gradient,), norm = rx.clip_by_global_norm(gradients, 1.0)
        w.assign_sub(gradient)
        return norm

    # The clipped means of two replicas would cancel out: -1 and 1.
    assert float(run(replica_step, *halves(strategy, (x, y)))) == pytest.approx(9.0)
    assert float(w) == pytest.approx(2.0)


def test_j3_clipping_before_is_refused(run, strategy):
    def replica_step(x):
        gradient = jax.grad(lambda w: jnp.mean(line_errors(w, x)))(jnp.float32(1.0))
        return rx.clip_by_global_norm(gradient, 1.0)

    with pytest.raises(rx.errors.VaryingWriteError, match="all_reduce"):
        run(replica_step, halves(strategy, X))


def test_j4_two_micro_steps_on_two_replicas_are_one_update(run, strategy):
    w = weight(strategy)

    def replica_step(x):
        loss, (gradient,) = rx.accumulate(lambda x: line_errors(w.value, x), x, 2, [w])
        w.assign_sub(0.01 * gradient)
        return loss

    assert float(run(replica_step, halves(strategy, X))) == 7.5
    assert float(w) == pytest.approx(1.15)


def test_j4_so_are_two_steps_of_optax_multi_steps(strategy):
    tx = optax.MultiSteps(optax.sgd(0.01), 2)

    @rx.function(donate="state")
    def step(state, batch):
        def replica_step(state, x):
            w, slots = state
            ctx = context()
            loss, gradient = jax.value_and_grad(lambda w: ctx.global_mean(line_errors(w, x)))(w)
            updates, slots = tx.update(ctx.all_reduce("mean", gradient), slots, w)
            return (optax.apply_updates(w, updates), slots), loss

        return strategy.run(replica_step, args=(state, batch))

    state = (jnp.float32(1.0), tx.init(jnp.float32(1.0)))
    for rows in (X[:2], X[2:]):
        state, _ = step(state, halves(strategy, rows))

    assert float(state[0]) == pytest.approx(1.15)


def test_l4_each_device_holds_its_rows():
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(4)])

    batch = halves(strategy, np.arange(16.0).reshape(8, 2))

    shards = batch.stacked.addressable_shards
    assert [shard.data.shape for shard in shards] == [(1, 2, 2)] * 4
    assert len({shard.device for shard in shards}) == 4
