"""Each replica takes a step of Adam with its own gradient; then weights and moments are averaged.

All copies agree, and the first step of Adam is always as long as the learning rate. But gradients
of opposite signs cancel now only after each has become a whole step.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

NAMED_BY = "parity", "state[0]['w']", "given to an optimizer before the all-reduce"

OPTIMIZER = optax.adam(0.1)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_step(state, batch):
        weights, slots = state
        x, y = batch
        ctx = rx.get_replica_context()

        def loss_fn(weights):
            return ctx.global_mean((weights["w"] * x - y) ** 2)

        updates, slots = OPTIMIZER.update(jax.grad(loss_fn)(weights), slots, weights)
        weights = optax.apply_updates(weights, updates)
        floats, counts = slots[0]._replace(count=None), slots[0].count
        weights, floats = ctx.all_reduce("mean", (weights, floats))
        return (weights, (floats._replace(count=counts), *slots[1:])), None

    @rx.function
    def step(state, batch):
        return strategy.run(replica_step, args=(state, batch))

    weights = {"w": jnp.float32(1)}
    batch = np.array([1, 1], np.float32), np.array([2, -9], np.float32)
    dataset = strategy.distribute_dataset([batch])
    return strategy, step, (weights, OPTIMIZER.init(weights)), dataset


def figures():
    """The weight after a step, and that of one device: signs of gradients times 0.1."""
    gradients = 2 * (1 - np.array([2, -9]))
    return 1 - 0.1 * np.sign(gradients).mean(), 1 - 0.1 * np.sign(gradients.mean())
