"""The elements of each replica's own gradient are cut at 1, and then averaged.

Nothing in the program says that this is clipping. w stays 1, and one device goes to 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "J3", "tensorflow/tensorflow#36001"
NAMED_BY = "parity", "a replica's own gradient before it is combined", "then `max` at"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_step(w, batch):
        x, y = batch
        ctx = rx.get_replica_context()
        gradient = jax.grad(lambda w: ctx.global_mean((w * x - y) ** 2))(w)
        gradient = ctx.all_reduce("mean", jnp.clip(gradient, -1, 1))  # fault
        return w - gradient, None

    @rx.function
    def step(w, batch):
        return strategy.run(replica_step, args=(w, batch))

    batch = np.array([1, 1], np.float32), np.array([2, -9], np.float32)
    return strategy, step, jnp.float32(1), strategy.distribute_dataset([batch])


def figures():
    """The weight after a step, and that of one device."""
    gradients = 2 * (1 - np.array([2, -9]))
    return 1 - np.clip(gradients, -1, 1).mean(), 1 - np.clip(gradients.mean(), -1, 1)
