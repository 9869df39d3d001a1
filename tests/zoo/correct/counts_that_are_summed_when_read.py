"""A sync-on-read variable counts rows on each replica, and adds up when it is read."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        negative = rx.Variable(
            0.0, name="negative", trainable=False, synchronization="on_read", aggregation="sum"
        )

    def replica_step(x):
        negative.assign_add(jnp.sum((x < 0).astype(jnp.float32)))

    @rx.function
    def step(x):
        strategy.run(replica_step, args=(x,))

    x = np.array([-1, 2, -3, -4], np.float32)
    return strategy, step, [negative], strategy.distribute_dataset([x, x])
