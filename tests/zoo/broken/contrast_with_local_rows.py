"""A contrastive loss compares each row with the other rows of its replica only.

With two rows a replica each has one negative, and on one device three.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

NAMED_BY = "parity", "`state`", "own rows together", "`dot_general` at"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_step(w, a, b):
        ctx = rx.get_replica_context()

        def loss_fn(w):
            scores = (a @ w) @ (b @ w).T  # fault
            labels = jnp.arange(scores.shape[0])
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
            return ctx.global_mean(losses)

        loss, gradient = jax.value_and_grad(loss_fn)(w)
        return w - 0.1 * ctx.all_reduce("mean", gradient), loss

    @rx.function
    def step(w, batch):
        return strategy.run(replica_step, args=(w, *batch))

    a, b = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    return strategy, step, jnp.eye(3), strategy.distribute_dataset([(a, b)])
