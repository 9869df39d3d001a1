"""Steps of several threads: modules hold the values of one at a time."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .modules import Line, nnx


@pytest.fixture
def line(strategy):
    with strategy.scope():
        return rx.nnx.adopt(Line(nnx.Rngs(0)))


def test_steps_that_do_not_use_a_module_leave_it_alone(strategy, line, in_threads):
    kernel = line.layer.kernel[...]
    with strategy.scope():
        w = rx.Variable(jnp.zeros(2), name="w")

    def work():
        for _ in range(3):
            rx.function(lambda: strategy.run(lambda: w.assign_add(jnp.ones(2))))()
            total = strategy.run(lambda: rx.get_replica_context().all_reduce("sum", 1.0))
            assert float(total) == strategy.num_replicas_in_sync

    in_threads(work, 3)
    np.testing.assert_array_equal(w, [9, 9])
    np.testing.assert_array_equal(line.layer.kernel[...], kernel)


def test_steps_of_one_module_are_counted_all(strategy, line, in_threads):
    """Each trace, and each eager run, reads what the step before has written."""

    def replica_fn():
        line.layer.bias[...] += rx.get_replica_context().all_reduce("mean", jnp.ones(1))

    def work():
        step = rx.function(lambda: strategy.run(replica_fn))
        for _ in range(10):
            step()

    in_threads(work, 3)
    np.testing.assert_array_equal(line.layer.bias[...], [30.0])
