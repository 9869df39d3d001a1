"""The loss is divided by the rows of a replica, and the gradients are summed.

It is the habit of tf.distribute with the division of another library. w is 1.30 and not 1.15.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "B2", "tensorflow/tensorflow#55321"
NAMED_BY = "parity", "`state`", "What changes is 2 times that of one device", "are summed"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((w * x - 2 * x) ** 2))(w)  # fault
        gradient = rx.get_replica_context().all_reduce("sum", gradient)
        return w - 0.01 * gradient, loss

    @rx.function
    def step(w, x):
        return strategy.run(replica_step, args=(w, x))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, jnp.float32(1), strategy.distribute_dataset([x])


def figures():
    """The weight after a step, and that of one device."""
    return 1.3, 1.15
