"""The last batch cannot be shared evenly; `ctx.global_mean` weighs rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_step(w, x):
        ctx = rx.get_replica_context()
        loss, gradient = jax.value_and_grad(lambda w: ctx.global_mean((w * x - 2 * x) ** 2))(w)
        return w - 0.01 * ctx.all_reduce("mean", gradient), loss

    @rx.function
    def step(w, x):
        return strategy.run(replica_step, args=(w, x))

    x = np.arange(1, 8, dtype=np.float32)
    options = rx.InputOptions(global_batch_size=4)
    return strategy, step, jnp.float32(1), strategy.distribute_dataset(x, options)
