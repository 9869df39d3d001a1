"""The key of the dropout masks is a constant, so it is the same on all replicas and in all steps.

Row 0 of replica 0 and row 0 of replica 1 lose the same features.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "C6", "tensorflow/tensorflow#58433"
NAMED_BY = "random", "draw the same numbers for different rows", "The key is equal on all replicas"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(np.ones(16, np.float32), name="w")

    def replica_step(x):
        ctx = rx.get_replica_context()
        mask = jax.random.bernoulli(jax.random.key(7), 0.5, x.shape)  # fault

        def loss_fn():
            return ctx.global_mean((jnp.sum(x * mask * w.value, axis=1) - 1) ** 2)

        loss, gradients = rx.value_and_grad(loss_fn, [w])()
        w.assign_sub(0.01 * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x, x])
