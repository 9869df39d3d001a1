"""Two worker processes, and state that goes in and comes back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

WORKERS = 2
OPTIMIZER = optax.adam(0.01)


def make():
    strategy = rx.MultiWorkerMirroredStrategy()

    @rx.function(donate="state")
    def step(state, batch):
        def replica_step(state, batch):
            (weights, moments), (x, y) = state, batch
            ctx = rx.get_replica_context()

            def loss_fn(weights):
                return ctx.global_mean((x @ weights["w"] - y) ** 2)

            loss, gradients = jax.value_and_grad(loss_fn)(weights)
            gradients = ctx.all_reduce("mean", gradients)
            updates, moments = OPTIMIZER.update(gradients, moments, weights)
            return (optax.apply_updates(weights, updates), moments), loss

        return strategy.run(replica_step, args=(state, batch))

    weights = {"w": jnp.zeros(3)}
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    dataset = strategy.distribute_dataset((x, x.sum(1)), rx.InputOptions(global_batch_size=4))
    return strategy, step, (weights, OPTIMIZER.init(weights)), dataset
