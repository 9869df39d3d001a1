"""The last batch has fewer rows than there are replicas, and one takes the mean of none.

0 / 0 is NaN, and one all-reduce later so are all weights.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "A1", "tensorflow/tensorflow#36224"
NAMED_BY = (
    rx.errors.UnusedMaskError,
    "result[0]",
    "sum or mean over the rows",
    "padding must not count",
)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((w * x - 2 * x) ** 2))(w)  # fault
        gradient, loss = rx.get_replica_context().all_reduce("mean", (gradient, loss))
        return w - 0.1 * gradient, loss

    @rx.function
    def step(w, x):
        return strategy.run(replica_step, args=(w, x))

    x = np.arange(1, 4, dtype=np.float32)
    options = rx.InputOptions(global_batch_size=2)
    return strategy, step, jnp.float32(1), strategy.distribute_dataset(x, options)


def figures():
    """The loss of the last batch, and that of one device."""
    return np.array([9.0, np.nan]).mean(), 9.0
