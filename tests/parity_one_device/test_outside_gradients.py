"""`jax.grad` around `strategy.run`: the gradient of one device, or an error."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .models import mirrored

N = 3
X = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
W = jnp.array([0.5, -1.0, 2.0])


def row_values(w, x):
    return jnp.sin(x @ w) + (x @ w) ** 2


def ctx():
    return rx.get_replica_context()


def run(fn, *args):
    return mirrored(N).run(fn, args=args)


def reduce(op, value, axis=None):
    return mirrored(N).reduce(op, value, axis=axis)


# How a loss of the global batch may be computed, and what it is on one device.
LOSSES = {
    "global_mean": (
        lambda w, x: run(lambda w, x: ctx().global_mean(row_values(w, x)), w, x),
        lambda w: jnp.mean(row_values(w, X)),
    ),
    "global_sum": (
        lambda w, x: run(lambda w, x: ctx().global_sum(row_values(w, x)), w, x),
        lambda w: jnp.sum(row_values(w, X)),
    ),
    "reduce rows": (
        lambda w, x: reduce("mean", run(row_values, w, x), axis=0),
        lambda w: jnp.mean(row_values(w, X)),
    ),
    "reduce sum of rows": (
        lambda w, x: reduce("sum", run(row_values, w, x), axis=0),
        lambda w: jnp.sum(row_values(w, X)),
    ),
    "gather": (
        lambda w, x: jnp.mean(mirrored(N).gather(run(row_values, w, x), axis=0) ** 2),
        lambda w: jnp.mean(row_values(w, X) ** 2),
    ),
    "mirrored, without a collective": (
        lambda w, x: run(lambda w: jnp.sum(w**3), w),
        lambda w: jnp.sum(w**3),
    ),
    "mirrored and varying": (
        lambda w, x: sum_of_both(*run(lambda w, x: (jnp.sum(w**2), row_values(w, x)), w, x)),
        lambda w: jnp.sum(w**2) + jnp.mean(row_values(w, X)),
    ),
    "a maximum over replicas": (
        lambda w, x: run(
            lambda w, x: ctx().all_reduce(rx.ReduceOp.MAX, jnp.sum(row_values(w, x))), w, x
        ),
        lambda w: jnp.max(jnp.sum(row_values(w, X).reshape(N, -1), axis=1)),
    ),
    "broadcast": (
        lambda w, x: run(lambda w, x: ctx().broadcast(jnp.sum(row_values(w, x)), 2), w, x),
        lambda w: jnp.sum(row_values(w, X[6:9])),
    ),
    "gathered and scattered": (
        lambda w, x: reduce("sum", run(gather_and_scatter, w, x), axis=0),
        lambda w: N * jnp.sum(row_values(w, X) ** 2),
    ),
    "merge_call": (
        lambda w, x: run(
            lambda w, x: ctx().merge_call(
                lambda strategy, v: strategy.reduce("mean", v, axis=0), args=(row_values(w, x),)
            ),
            w,
            x,
        ),
        lambda w: jnp.mean(row_values(w, X)),
    ),
}


def sum_of_both(common, varying):
    return common + reduce("mean", varying, axis=0)


def gather_and_scatter(w, x):
    everywhere = ctx().all_gather(row_values(w, x), axis=0)
    return ctx().reduce_scatter("sum", everywhere**2)


def shared_out(x):
    (batch,) = mirrored(N).distribute_dataset([x])
    return batch


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "where",
    ["inside rx.function", "around rx.function", pytest.param("without", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", LOSSES)
def test_gradient_from_outside_is_that_of_one_device(name, where):
    loss, one_device = LOSSES[name]
    x = shared_out(X)
    if where == "inside rx.function":
        value, gradient = rx.function(jax.value_and_grad(loss))(W, x)
    elif where == "around rx.function":
        step = rx.function(loss)
        value, gradient = jax.value_and_grad(lambda w: step(w, x))(W)
    else:
        value, gradient = jax.value_and_grad(lambda w: loss(w, x))(W)
    expected, expected_gradient = jax.value_and_grad(one_device)(W)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("inside", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [7, 2])
@pytest.mark.parametrize("name", ["global_mean", "reduce rows"])
def test_gradient_from_outside_of_an_uneven_batch(name, count, inside):
    loss, _ = LOSSES[name]
    x = X[:count]
    batch = shared_out(x)
    if inside:
        gradient = rx.function(jax.grad(loss))(W, batch)
    else:
        gradient = jax.grad(lambda w: loss(w, batch))(W)
    expected = jax.grad(lambda w: jnp.mean(row_values(w, x)))(W)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


def test_gradient_with_respect_to_the_rows(runner):
    """A per-replica value is a tree; its gradient is one, too."""
    strategy, (loss, _) = mirrored(N), LOSSES["global_mean"]
    step = runner(jax.grad(loss, argnums=1))
    gradient = strategy.gather(step(W, shared_out(X)), axis=0)
    expected = jax.grad(lambda x: jnp.mean(row_values(W, x)))(X)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_forward_mode_from_outside(runner):
    loss, one_device = LOSSES["global_mean"]
    x, direction = shared_out(X), jnp.array([1.0, 2.0, -1.0])
    step = runner(lambda w: jax.jvp(lambda w: loss(w, x), (w,), (direction,))[1])
    expected = jax.jvp(one_device, (W,), (direction,))[1]
    assert float(step(W)) == pytest.approx(float(expected), rel=1e-4)


def test_gradient_from_outside_of_a_gradient_inside(runner):
    """The inner gradient is a replica's own; the outer one that of the whole program."""

    def norm(w, x):
        def replica_fn(w, x):
            inner = jax.grad(lambda w: ctx().global_mean(row_values(w, x)))(w)
            return jnp.sum(ctx().all_reduce("mean", inner) ** 2)

        return run(replica_fn, w, x)

    x = shared_out(X)
    gradient = runner(lambda w: jax.grad(norm)(w, x))(W)
    expected = jax.grad(lambda w: jnp.sum(jax.grad(lambda w: jnp.mean(row_values(w, X)))(w) ** 2))(
        W
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)


def test_variables_inside_a_gradient_from_outside_are_right_or_refused(runner):
    """By a run of one device, 2 w x for w = 3 and the mean row value of x."""
    strategy = mirrored(N)
    with strategy.scope():
        w = rx.Variable(3.0, name="w")
    x = shared_out(X[:, 0])

    def loss():
        return reduce("mean", run(lambda x: w.value**2 * x, x), axis=0)

    step = runner(lambda: rx.value_and_grad(loss, [w])()[1][0])
    try:
        gradient = step()
    except rx.errors.ReplicaxError as error:
        assert "`w`" in str(error)  # noqa: PT017 - either outcome keeps the contract
    else:
        assert float(gradient) == pytest.approx(6.0 * X[:, 0].mean(), rel=1e-5)


def test_a_variable_read_outside_is_differentiated_as_a_number():
    strategy = mirrored(N)
    with strategy.scope():
        w = rx.Variable(W)
    loss, one_device = LOSSES["global_mean"]
    step = rx.function(lambda x: jax.grad(loss)(w.value, x))
    np.testing.assert_allclose(step(shared_out(X)), jax.grad(one_device)(W), rtol=1e-4, atol=1e-5)


def test_writes_inside_a_gradient_from_outside_are_refused(runner):
    strategy = mirrored(N)
    with strategy.scope():
        w = rx.Variable(3.0, name="w")

    def loss(v):
        def replica_fn(v):
            w.assign(v)
            return v * v

        return strategy.run(replica_fn, args=(v,))

    with pytest.raises(rx.errors.ContextError, match="`w`"):
        runner(jax.grad(loss))(2.0)
    assert float(w) == 3.0
