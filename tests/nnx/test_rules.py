"""What a write on each replica means, by the type of the `nnx.Variable`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

from .modules import Line, Normalised, nnx, squares

X = np.arange(24.0, dtype=np.float32).reshape(4, 6) / 24


@pytest.mark.slow
def test_statistics_of_batches_are_the_mean_over_the_replicas(strategy):
    with strategy.scope():
        module = rx.nnx.adopt(Normalised(nnx.Rngs(0)))
    hidden = [np.asarray(module.first(half)) for half in (X[:2], X[2:])]

    step = rx.function(lambda x: strategy.run(lambda x: module(x).sum(), args=(x,)))
    step(rx.PerReplica([X[:2], X[2:]]))

    mean = np.mean([rows.mean(axis=0) for rows in hidden], axis=0)
    np.testing.assert_allclose(module.norm.mean[...], 0.5 * mean, rtol=1e-5)
    variance = np.mean([rows.var(axis=0) for rows in hidden], axis=0)
    np.testing.assert_allclose(module.norm.var[...], 0.5 + 0.5 * variance, rtol=1e-5)


def test_metrics_count_what_all_replicas_add(runner, strategy):
    with strategy.scope():
        metric = rx.nnx.adopt(nnx.MultiMetric(loss=nnx.metrics.Average("loss")))
    step = runner(lambda x: strategy.run(lambda x: metric.update(loss=x), args=(x,)))

    step(rx.PerReplica([jnp.array([1.0, 2.0]), jnp.array([3.0, 10.0])]))
    step(rx.PerReplica([jnp.array([0.0, 0.0]), jnp.array([4.0, 4.0])]))

    assert float(metric.compute()["loss"]) == 24 / 8
    metric.reset()
    step(rx.PerReplica([jnp.array([1.0, 2.0]), jnp.array([3.0, 10.0])]))
    assert float(metric.compute()["loss"]) == 4.0


def test_metrics_that_do_not_add_up_are_refused(strategy):
    with strategy.scope(), pytest.raises(rx.errors.UnimplementedError, match="Welford"):
        rx.nnx.adopt(nnx.MultiMetric(loss=nnx.metrics.Welford("loss")))


@pytest.mark.slow
def test_each_replica_draws_masks_of_its_own_and_runs_repeat(runner, strategy):
    def masks():
        with strategy.scope():
            dropout = rx.nnx.adopt(nnx.Dropout(0.5, rngs=nnx.Rngs(7)))
        step = runner(lambda: strategy.run(lambda: dropout(jnp.ones(64))))
        drawn = [np.stack(strategy.local_results(step())) for _ in range(2)]
        assert int(dropout.rngs.count[...]) == 2
        return np.stack(drawn)

    first = masks()

    assert not np.array_equal(first[0, 0], first[0, 1])  # replicas
    assert not np.array_equal(first[0, 0], first[1, 0])  # steps
    np.testing.assert_array_equal(first, masks())


def test_one_replica_has_the_masks_of_one_device():
    one = rx.OneDeviceStrategy("cpu:0")
    expected = nnx.Dropout(0.5, rngs=nnx.Rngs(7))(jnp.ones(64))
    with one.scope():
        dropout = rx.nnx.adopt(nnx.Dropout(0.5, rngs=nnx.Rngs(7)))

    np.testing.assert_array_equal(one.run(lambda: dropout(jnp.ones(64))), expected)


def test_what_the_user_writes_between_steps_counts(strategy):
    with strategy.scope():
        module = rx.nnx.adopt(Line(nnx.Rngs(0)))
    step = rx.function(lambda x: strategy.run(module, args=(x,)))
    x = rx.PerReplica([X[:2], X[2:]])
    step(x)

    module.layer.kernel[...] = jnp.ones((6, 1))
    module.layer.bias[...] = jnp.full(1, 2.0)

    results = np.concatenate(strategy.local_results(step(x)))
    np.testing.assert_allclose(results, X.sum(axis=1) + 2, rtol=1e-6)
    nnx.update(module, {"layer": {"bias": jnp.zeros(1)}})
    results = np.concatenate(strategy.local_results(step(x)))
    np.testing.assert_allclose(results, X.sum(axis=1), rtol=1e-6)


def test_an_array_of_another_shape_is_refused_by_name(strategy):
    with strategy.scope():
        module = rx.nnx.adopt(Line(nnx.Rngs(0)))
    step = rx.function(lambda: strategy.run(lambda: module.layer.bias[...] * 1))
    step()
    module.layer.bias.set_value(jnp.ones(3))

    with pytest.raises(rx.errors.InvalidArgumentError, match=r"Line\.layer\.bias"):
        step()
    with strategy.scope():
        rx.nnx.adopt(module)
    np.testing.assert_array_equal(step(), np.ones(3))


def test_modules_work_in_an_rx_function_outside_of_replicas(strategy):
    with strategy.scope():
        module = rx.nnx.adopt(Line(nnx.Rngs(0)))

    @rx.function
    def evaluate(x):
        return module(x)

    np.testing.assert_allclose(evaluate(X), module(X), rtol=1e-6)
    module.layer.bias[...] += 1.0
    np.testing.assert_allclose(evaluate(X), module(X), rtol=1e-6)


@pytest.mark.slow
def test_loss_scaling_skips_modules_too(strategy):
    with strategy.scope():
        module = Line(nnx.Rngs(0))
        optimizer = nnx.Optimizer(module, optax.adam(0.1), wrt=nnx.Param)
        rx.nnx.adopt(module, optimizer)
        scale = rx.precision.LossScale(8.0)

    @rx.function
    def step(x):
        def replica_step(x):
            ctx = rx.get_replica_context()

            def loss(module):
                return scale.multiply(ctx.global_mean(squares(module, x, 0.0)))

            gradients = ctx.all_reduce("mean", nnx.grad(loss)(module))
            return scale.apply_gradients(optimizer, gradients, module)

        return strategy.run(replica_step, args=(x,))

    before = np.asarray(module.layer.kernel[...])
    assert not step(rx.PerReplica([X[:2], np.full((2, 6), np.inf, np.float32)]))
    np.testing.assert_array_equal(module.layer.kernel[...], before)
    assert int(optimizer.step[...]) == 0
    assert float(scale.value) == 4.0
    assert step(rx.PerReplica([X[:2], X[2:]]))
    assert int(optimizer.step[...]) == 1
    assert np.isfinite(module.layer.kernel[...]).all()


def test_a_step_does_not_take_the_keys_of_modules_that_it_does_not_use(strategy, other):
    """Each replica sees a key of its own, in steps of other strategies too."""
    with strategy.scope():
        dropout = rx.nnx.adopt(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    with other.scope():
        w = rx.Variable(jnp.ones(2), name="w")
    step = rx.function(lambda x: other.run(lambda x: x * w.value, args=(x,)))

    np.testing.assert_array_equal(step(jnp.ones(2)), [1, 1])
    assert [variable.name for variable in step._latest.read] == ["w"]
    del dropout
