"""`rx.Optimizer`, `rx.apply_gradients` and `rx.clip_by_global_norm` on two replicas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

ROWS = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 4.0], [2.0, 2.0], [1.0, 0.0]], np.float32)
START = np.array([1.0, -2.0], np.float32)


def context():
    return rx.get_replica_context()


# Jitted, because the eager runner compiles each operation by itself for each device and shape.
@jax.jit
def errors_of_rows(w, b, rows):
    return (rows @ w + b - 1.0) ** 2


def training(strategy, transformation, variables=None, **options):
    """Variables, their optimizer and a step that clips, in the strategy's scope."""
    with strategy.scope():
        w, b = rx.Variable(START, name="w"), rx.Variable(0.0, name="b")
        optimizer = rx.Optimizer(transformation, {"w": w, "b": b})

    def replica_step(rows):
        def loss():
            return context().global_mean(errors_of_rows(w.value, b.value, rows))

        value, gradients = rx.value_and_grad(loss, optimizer.variables)()
        gradients = context().all_reduce("mean", gradients)
        gradients, norm = rx.clip_by_global_norm(gradients, 5.0)
        rx.apply_gradients(optimizer, gradients, **options)
        return value, norm

    return w, b, optimizer, replica_step


def by_hand(transformation, steps):
    params = {"w": jnp.asarray(START), "b": jnp.zeros(())}
    state = transformation.init(params)
    seen = []
    for rows in steps:
        loss, grads = jax.value_and_grad(
            lambda p, rows=rows: errors_of_rows(p["w"], p["b"], rows).mean()
        )(params)
        norm = optax.tree.norm(grads)
        grads = jax.tree.map(lambda g, norm=norm: g * (5.0 / jnp.maximum(norm, 5.0)), grads)
        updates, state = transformation.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        seen.append((float(loss), float(norm)))
    return params, state, seen


def test_clipped_adam_is_that_of_one_device(runner, strategy):
    transformation = optax.adam(0.1)
    w, b, optimizer, replica_step = training(strategy, transformation)
    step = runner(lambda rows: strategy.run(replica_step, args=(rows,)))

    batches = strategy.distribute_dataset([ROWS, ROWS])
    seen = [tuple(map(float, step(rows))) for rows in batches]

    params, state, expected = by_hand(transformation, [ROWS, ROWS])
    np.testing.assert_allclose(seen, expected, rtol=1e-5)
    np.testing.assert_allclose(w.value, params["w"], atol=1e-6)
    np.testing.assert_allclose(b.value, params["b"], atol=1e-6)
    np.testing.assert_allclose(optimizer.state[0].nu["w"].value, state[0].nu["w"], rtol=1e-5)
    assert int(optimizer.state[0].count) == 2
    rx.check_replicas_equal((w, b, jax.tree.leaves(optimizer.state)))


def test_a_checkpoint_holds_the_state_of_the_optimizer(strategy, tmp_path):
    class Model:
        def __init__(self, strategy):
            with strategy.scope():
                self.w = rx.Variable(START, name="w")
                self.optimizer = rx.Optimizer(optax.adam(0.1), [self.w])

    first, second = Model(strategy), Model(rx.OneDeviceStrategy("cpu:5"))
    with strategy.scope():
        first.optimizer.apply([jnp.ones(2)])
    rx.checkpoint.Checkpoint(model=first).save(tmp_path / "saved")
    rx.checkpoint.Checkpoint(model=second).restore(tmp_path / "saved")

    assert int(second.optimizer.state[0].count) == 1
    np.testing.assert_array_equal(second.w.value, first.w.value)


@pytest.mark.parametrize("is_finite", [True, False])
def test_a_step_may_be_skipped_as_a_whole(runner, strategy, is_finite):
    with strategy.scope():
        w = rx.Variable(START, name="w")
        optimizer = rx.Optimizer(optax.adam(0.1), [w])

    def replica_step(flag):
        rx.apply_gradients(optimizer, [jnp.full(2, jnp.inf)], apply_if=jnp.logical_not(flag))

    step = runner(lambda flag: strategy.run(replica_step, args=(flag,)))
    step(jnp.array(is_finite))

    assert int(optimizer.state[0].count) == (0 if is_finite else 1)
    assert np.array_equal(w.value, START) is is_finite


@pytest.mark.parametrize("call", ["clip", "apply", "condition"])
def test_gradients_that_were_not_reduced_are_refused(runner, strategy, call):
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
        optimizer = rx.Optimizer(optax.sgd(0.1), [w])

    def replica_step(gradient):
        if call == "clip":
            return rx.clip_by_global_norm([gradient], 1.0)
        mean = context().all_reduce("mean", gradient)
        if call == "condition":
            return rx.apply_gradients(optimizer, [mean], apply_if=gradient > 1.5)
        return rx.apply_gradients(optimizer, [gradient])

    step = runner(lambda gradient: strategy.run(replica_step, args=(gradient,)))
    with pytest.raises(rx.errors.VaryingWriteError, match=r"all_reduce\('mean', gradients\)"):
        step(rx.PerReplica([1.0, 2.0]))
    assert float(w) == 1.0


def test_one_replica_has_nothing_to_reduce():
    clipped, norm = rx.clip_by_global_norm({"a": jnp.array([3.0, 4.0])}, 10.0)

    assert float(norm) == 5.0
    np.testing.assert_array_equal(clipped["a"], [3.0, 4.0])


def test_half_precision_norms_do_not_overflow():
    clipped, norm = rx.clip_by_global_norm([jnp.full(4, 3e4, jnp.float16)], 6.0)

    assert float(norm) == pytest.approx(6e4, rel=1e-3)
    np.testing.assert_allclose(clipped[0], np.full(4, 3.0), rtol=1e-3)
    assert clipped[0].dtype == jnp.float16


def test_sparse_rows_are_added_up_before_the_norm():
    rows = rx.IndexedSlices([3.0, 1.0, 3.0], [1, 0, 1], dense_shape=(2,))

    clipped, norm = rx.clip_by_global_norm([rows], 100.0)

    assert float(norm) == pytest.approx(np.hypot(6.0, 1.0))
    np.testing.assert_allclose(clipped[0], [1.0, 6.0])


@pytest.mark.parametrize("max_norm", [0.0, -1.0])
def test_a_limit_that_is_no_norm_is_refused(max_norm):
    with pytest.raises(rx.errors.InvalidArgumentError, match="not above zero"):
        rx.clip_by_global_norm([jnp.ones(2)], max_norm)


def test_a_bare_transformation_is_refused_with_the_fix():
    w = rx.Variable(1.0)

    with pytest.raises(rx.errors.ArgumentTypeError, match=r"rx.Optimizer\(transformation"):
        rx.apply_gradients(optax.sgd(0.1), [jnp.ones(())], [w])


def test_gradients_and_variables_of_others_are_refused():
    w, other = rx.Variable(1.0, name="w"), rx.Variable(1.0, name="other")
    optimizer = rx.Optimizer(optax.sgd(0.1), [w])

    with pytest.raises(rx.errors.InvalidArgumentError, match="another structure"):
        rx.apply_gradients(optimizer, {"w": 1.0})
    with pytest.raises(rx.errors.InvalidArgumentError, match="not the variables"):
        rx.apply_gradients(optimizer, [1.0], [other])
    with pytest.raises(rx.errors.ArgumentTypeError, match="no trainable"):
        rx.Optimizer(optax.sgd(0.1), [rx.Variable(1.0, trainable=False)])
    with pytest.raises(rx.errors.ArgumentTypeError, match="no transformation"):
        rx.Optimizer(0.1, [w])
