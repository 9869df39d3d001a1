"""Sums over the replicas of constants: none is sent, and the numbers stay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import replicax as rx
from replicax.step._constant_sums import without_constant_sums

AXIS = ("replica", 4)


def traced(function, *args):
    return jax.make_jaxpr(function, axis_env=[AXIS])(*args)


def primitives(closed_jaxpr):
    return [eqn.primitive.name for eqn in closed_jaxpr.eqns]


def test_the_gradient_of_a_mean_waits_for_no_sum_of_ones():
    def step(w, x):
        return jax.value_and_grad(lambda w: lax.psum((w * x).sum(), "replica") / 12)(w)

    before = traced(step, 2.0, jnp.ones(3))
    after = without_constant_sums(before, *AXIS)

    assert primitives(before).count("psum") == 2
    assert primitives(after).count("psum") == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8"])
def test_the_product_is_the_sum(dtype):
    after = without_constant_sums(traced(lambda: lax.psum(jnp.ones((), dtype), "replica")), *AXIS)

    assert "psum" not in primitives(after)
    [total] = jax.core.eval_jaxpr(getattr(after, "jaxpr", after), after.consts)
    assert (total, total.dtype) == (4, dtype)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: lax.psum(x, "replica"), id="an argument"),
        pytest.param(lambda x: lax.psum(x * 0 + 1, "replica"), id="of an argument"),
        pytest.param(lambda x: lax.psum(lax.axis_index("replica"), "replica"), id="of the replica"),
        pytest.param(lambda x: lax.pmax(jnp.ones(()), "replica"), id="another op"),
        pytest.param(lambda x: lax.psum(jnp.ones((3,)), "replica"), id="an array"),
    ],
)
def test_what_is_no_sum_of_a_constant_stays(function):
    before = traced(function, 1.0)
    assert without_constant_sums(before, *AXIS) is before


def test_another_axis_stays():
    before = traced(lambda: lax.psum(jnp.ones(()), "replica"))
    assert without_constant_sums(before, "model", 4) is before


def test_a_training_step_sends_its_loss_and_its_gradients():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    @rx.function
    def step(w, x):
        def replica_step(w, x):
            ctx = rx.get_replica_context()
            loss, gradient = jax.value_and_grad(lambda w: ctx.global_mean(jnp.square(x @ w)))(w)
            return loss, ctx.all_reduce("mean", gradient)

        return strategy.run(replica_step, args=(w, x))

    rows = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    x = rx.PerReplica([rows[:2], rows[2:]])
    w = jnp.arange(3.0)
    loss, gradient = jax.value_and_grad(lambda w: jnp.square(rows @ w).mean())(w)

    found = step(w, x)

    np.testing.assert_allclose(found[0], loss, rtol=1e-6)
    np.testing.assert_allclose(found[1], gradient, rtol=1e-6)
    assert sum(each.bytes for each in step.collectives(w, x)) == 4 * (1 + 3)


def test_a_count_of_replicas_is_still_known_to_be_a_sum():
    """A sum of it over the replicas would count each of them twice."""
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    @rx.function
    def step():
        count = strategy.run(lambda: rx.get_replica_context().all_reduce("sum", 1.0))
        return strategy.reduce("sum", count, axis=None)

    with pytest.raises(rx.errors.InvalidArgumentError):
        step()
