"""The hardest half of the rows is chosen on each replica, not of the global batch.

One device would learn from the rows 3 and 4; two replicas learn from 2 and 4.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "B10", "keras-team/keras#19290"
NAMED_BY = "parity", "`state['w']`", "own rows together", "`top_k` at"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_step(weights, x):
        def loss_fn(weights):
            losses = (weights["w"] * x - 2 * x) ** 2
            return jnp.mean(jax.lax.top_k(losses, x.shape[0] // 2)[0])  # fault

        loss, gradients = jax.value_and_grad(loss_fn)(weights)
        gradients, loss = rx.get_replica_context().all_reduce("mean", (gradients, loss))
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients), loss

    @rx.function
    def step(weights, x):
        return strategy.run(replica_step, args=(weights, x))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, {"w": jnp.float32(1)}, strategy.distribute_dataset([x])


def figures():
    """The loss, and that of one device."""
    losses = np.arange(1, 5) ** 2
    return losses[[1, 3]].mean(), losses[[2, 3]].mean()
