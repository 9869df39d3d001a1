"""The loss is a scalar already when the rows are to be counted.

Of two rows and of one row the means would count alike: 5.75, and it should be 4.67.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "A3", "tensorflow/tensorflow#52053"
NAMED_BY = rx.errors.InvalidArgumentError, "`global_mean` was given a scalar"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        ctx = rx.get_replica_context()

        def loss_fn():
            return ctx.global_mean(jnp.mean((w.value * x - 2 * x) ** 2))  # fault

        loss, gradients = rx.value_and_grad(loss_fn, [w])()
        w.assign_sub(0.01 * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 4, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x])


def figures():
    """The loss as a mean of means, and as one mean."""
    losses = np.arange(1, 4) ** 2
    return (losses[:2].mean() + losses[2]) / 2, losses.mean()
