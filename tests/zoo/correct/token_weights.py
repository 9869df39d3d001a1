"""A loss of tokens: the global sum over the global number of tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_step(scale, losses, mask):
        ctx = rx.get_replica_context()

        def loss_fn(scale):
            total = ctx.global_sum(jnp.sum(scale * losses * mask, axis=1))
            return total / ctx.global_sum(jnp.sum(mask, axis=1))

        loss, gradient = jax.value_and_grad(loss_fn)(scale)
        return scale - 0.01 * ctx.all_reduce("mean", gradient), loss

    @rx.function
    def step(scale, batch):
        return strategy.run(replica_step, args=(scale, *batch))

    losses = np.array([[1, 2, 3], [10, 99, 99]], np.float32)
    mask = np.array([[1, 1, 1], [1, 0, 0]], np.float32)
    return strategy, step, jnp.float32(1), strategy.distribute_dataset([(losses, mask)])
