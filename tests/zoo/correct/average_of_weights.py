"""A moving average of the weights, which every replica computes alike."""

from __future__ import annotations

import jax
import numpy as np
import optax

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
        average = rx.Variable(1.0, name="average", trainable=False)
        optimizer = rx.Optimizer(optax.adam(0.01), [w])

    def replica_step(x):
        ctx = rx.get_replica_context()
        loss, gradients = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients))
        average.assign(0.9 * average.value + 0.1 * w.value)
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return (
        strategy,
        step,
        [w, average, *jax.tree.leaves(optimizer.state)],
        strategy.distribute_dataset([x, x]),
    )
