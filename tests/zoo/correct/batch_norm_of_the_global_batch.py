"""BatchNorm with the statistics of the global batch, also of an uneven one."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        scale = rx.Variable(1.0, name="scale")
        moving = rx.Variable(0.0, name="moving", trainable=False)

    def replica_step(x):
        ctx = rx.get_replica_context()

        def loss_fn():
            mean = ctx.global_mean(x)
            variance = ctx.global_mean((x - mean) ** 2)
            normalized = (x - mean) / jnp.sqrt(variance + 1e-3)
            moving.assign(0.9 * moving.value + 0.1 * mean)
            return ctx.global_mean((scale.value * normalized - 2 * x) ** 2)

        loss, gradients = rx.value_and_grad(loss_fn, [scale])()
        scale.assign_sub(0.01 * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.array([1, 2, 30, 40, 5], np.float32)
    options = rx.InputOptions(global_batch_size=5)
    return strategy, step, [scale, moving], strategy.distribute_dataset(x, options)
