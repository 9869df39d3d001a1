"""Steps from several threads, and many steps under way."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

THREADS, CALLS = 3, 40


def test_threads_may_call_one_function(strategy, in_threads):
    with strategy.scope():
        w = rx.Variable(jnp.zeros(2), name="w")

    @rx.function
    def step(x):
        def replica_fn(x):
            w.assign_add(rx.get_replica_context().all_reduce("mean", x))

        strategy.run(replica_fn, args=(x,))

    def work():
        for _ in range(CALLS):
            step(jnp.ones(2))

    in_threads(work, THREADS)
    np.testing.assert_array_equal(w, [THREADS * CALLS] * 2)


def test_threads_may_call_functions_of_one_variable(strategy, in_threads):
    with strategy.scope():
        w = rx.Variable(jnp.zeros(2), name="w")

    def work():
        step = rx.function(lambda: strategy.run(lambda: w.assign_add(jnp.ones(2))))
        for _ in range(CALLS):
            step()

    in_threads(work, THREADS)
    np.testing.assert_array_equal(w, [THREADS * CALLS] * 2)


def test_threads_may_run_eagerly(strategy, in_threads):
    def work():
        for _ in range(5):
            total = strategy.run(lambda: rx.get_replica_context().all_reduce("sum", 1.0))
            assert float(total) == 2.0

    in_threads(work, THREADS)


@pytest.mark.parametrize("in_place", [True, False])
def test_many_steps_with_collectives_may_be_under_way(strategy, in_place):
    """Without a limit they block all threads of XLA's pool on the CPU."""
    with strategy.scope():
        w = rx.Variable(jnp.zeros(()), name="w")

    def replica_fn(x):
        context = rx.get_replica_context()
        for _ in range(40):
            x = jnp.sin(context.all_reduce("mean", x)) + 1
        if in_place:
            w.assign(x)
        return x

    step = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))
    results = [step(jnp.float32(i % 7)) for i in range(400)]
    jax.block_until_ready(results)
    for i in range(7):
        expected = float(i)
        for _ in range(40):
            expected = np.sin(expected) + 1
        np.testing.assert_allclose(results[i], expected, rtol=1e-5)
        np.testing.assert_array_equal(results[i], results[i + 7 * 50])
