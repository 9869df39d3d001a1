"""The loss of each replica is divided by its own number of tokens, and the losses are averaged.

Replica 0 has a sum of 6 over three tokens, replica 1 one of 10 over one: 6, and it should be 4.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "B11", "huggingface/transformers#34191"
NAMED_BY = "parity", "`state`", "own rows together", "then `div` at"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_step(scale, losses, mask):
        def loss_fn(scale):
            return jnp.sum(scale * losses * mask) / jnp.sum(mask)  # fault

        loss, gradient = jax.value_and_grad(loss_fn)(scale)
        gradient, loss = rx.get_replica_context().all_reduce("mean", (gradient, loss))
        return scale - 0.01 * gradient, loss

    @rx.function
    def step(scale, batch):
        return strategy.run(replica_step, args=(scale, *batch))

    losses = np.array([[1, 2, 3], [10, 99, 99]], np.float32)
    mask = np.array([[1, 1, 1], [1, 0, 0]], np.float32)
    return strategy, step, jnp.float32(1), strategy.distribute_dataset([(losses, mask)])


def figures():
    """The loss, and that of one device."""
    return (6 / 3 + 10 / 1) / 2, 16 / 4
