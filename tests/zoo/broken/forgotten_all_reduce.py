"""Each replica gives its own gradient to optax, and the new weights come back as the state.

On two replicas the weights are 1.05 and 1.25 after a step, and one device has 1.15.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

NAMED_BY = rx.errors.VaryingWriteError, "state[0]['w']", "a gradient was not all-reduced"

OPTIMIZER = optax.sgd(0.01)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_step(state, x):
        weights, slots = state
        ctx = rx.get_replica_context()

        def loss_fn(weights):
            return ctx.global_mean((weights["w"] * x - 2 * x) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(weights)
        updates, slots = OPTIMIZER.update(gradients, slots, weights)  # fault
        return (optax.apply_updates(weights, updates), slots), loss

    @rx.function(donate="state")
    def step(state, x):
        return strategy.run(replica_step, args=(state, x))

    weights = {"w": jnp.float32(1)}
    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, (weights, OPTIMIZER.init(weights)), strategy.distribute_dataset([x])


def figures():
    """The weights of two replicas, and of one device."""
    x = np.arange(1, 5)
    gradients = 2 * (x - 2 * x) * x
    return 1 - 0.01 * gradients.reshape(2, 2).mean(1), 1 - 0.01 * gradients.mean()
