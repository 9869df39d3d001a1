"""Variables under plain `jax.jit`, which knows nothing of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


@pytest.fixture
def w(strategy):
    with strategy.scope():
        return rx.Variable(jnp.ones(2), name="w")


def test_a_write_is_refused(w):
    with pytest.raises(rx.errors.ContextError, match=r"`w` was written under `jax\.jit`"):
        jax.jit(w.assign)(jnp.zeros(2))
    np.testing.assert_array_equal(w, [1, 1])


def test_a_write_of_a_variable_outside_of_a_scope_is_refused():
    v = rx.Variable(1.0, name="v")
    with pytest.raises(rx.errors.ContextError, match=r"`v` was written under"):
        jax.jit(v.assign_add)(1.0)
    assert float(v) == 1.0


def test_a_step_that_writes_is_refused(strategy, w):
    step = rx.function(lambda x: strategy.run(w.assign_add, args=(x,)))
    with pytest.raises(rx.errors.ContextError, match=r"`w` was used under `jax\.jit`"):
        jax.jit(step)(jnp.ones(2))
    step(jnp.ones(2))
    np.testing.assert_array_equal(w, [2, 2])


@pytest.mark.parametrize(
    "use", [lambda w, x: w.value * x, lambda w, x: w.assign(x)], ids=["read", "write"]
)
def test_use_in_a_replica_is_refused(strategy, w, use):
    program = jax.jit(lambda x: strategy.run(lambda x: use(w, x), args=(x,)))
    with pytest.raises(rx.errors.ContextError, match=r"rx\.function.*instead of `jax\.jit`"):
        program(jnp.ones(2))


def test_a_run_without_variables_works(strategy):
    def replica_fn(x):
        context = rx.get_replica_context()
        return context.all_reduce("sum", x * (1 + context.replica_id_in_sync_group))

    program = jax.jit(lambda x: strategy.run(replica_fn, args=(x,)))
    for x in (1.0, 2.0):
        assert float(program(x)) == 3 * x


def test_a_varying_result_is_per_replica(strategy):
    ids = jax.jit(lambda: strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group))()
    assert [int(x) for x in ids.values] == [0, 1]


def test_gradients_through_a_run(strategy):
    def loss(x):
        return strategy.run(lambda x: x**2, args=(x,))

    assert float(jax.grad(loss)(3.0)) == 6.0
    assert float(jax.grad(rx.function(loss))(3.0)) == 6.0


# --- reads that jax would keep as constants ------------------------------------------------------


def test_a_read_under_jit_outside_of_a_step_is_refused(w):
    with pytest.raises(rx.errors.ContextError, match="`w`"):
        jax.jit(lambda x: x * w.value)(1.0)
    assert float(jax.grad(lambda x: (x * w.value).sum())(1.0)) == 2.0


def test_a_step_that_reads_is_refused_under_jit(strategy, w):
    step = rx.function(lambda x: strategy.run(lambda x: x * w.value, args=(x,)))
    with pytest.raises(rx.errors.ContextError, match="`w`"):
        jax.jit(step)(jnp.ones(2))
    np.testing.assert_array_equal(step(jnp.ones(2)), [1, 1])


@pytest.mark.parametrize("form", ["jit", "scan"])
def test_a_cached_trace_never_holds_an_old_value(runner, strategy, w, form):
    """jax caches what is below by its identity, the value of `w` included."""

    def body(carry, x):
        return carry + w.value.sum(), x

    scaled = jax.jit(lambda x: (w.value * x).sum())

    def replica_fn():
        result = scaled(1.0) if form == "jit" else jax.lax.scan(body, 0.0, jnp.ones(1))[0]
        w.assign_add(jnp.ones(2))
        return result

    step = runner(lambda: strategy.run(replica_fn))
    if runner.compiled:
        assert [float(step()) for _ in range(3)] == [2.0, 4.0, 6.0]
        return
    with pytest.raises(rx.errors.UnimplementedError, match="`w`"):
        step()
    np.testing.assert_array_equal(w, [1, 1])
