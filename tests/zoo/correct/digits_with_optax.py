"""Handwritten digits: a pytree of weights and optax, with state that goes in and comes back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import replicax as rx

OPTIMIZER = optax.adam(0.01)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    weights = {"kernel": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}

    @rx.function(donate="state")
    def step(state, batch):
        def replica_step(state, batch):
            (weights, moments), (x, y) = state, batch
            ctx = rx.get_replica_context()

            def loss_fn(weights):
                logits = x @ weights["kernel"] + weights["bias"]
                return ctx.global_mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))

            loss, gradients = jax.value_and_grad(loss_fn)(weights)
            gradients = ctx.all_reduce("mean", gradients)
            updates, moments = OPTIMIZER.update(gradients, moments, weights)
            return (optax.apply_updates(weights, updates), moments), loss

        return strategy.run(replica_step, args=(state, batch))

    images, labels = load_digits(return_X_y=True)
    rows = images[:20].astype("float32") / 16, labels[:20]
    dataset = strategy.distribute_dataset(rows, rx.InputOptions(global_batch_size=8))
    return strategy, step, (weights, OPTIMIZER.init(weights)), dataset
