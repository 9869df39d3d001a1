"""A moving mean that all replicas share is set from each replica's own rows.

In tf.distribute, and with plain arrays in JAX, the copies part in silence: 0.75 and 1.75.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "C1", "google/flax#877"
NAMED_BY = (
    rx.errors.VaryingWriteError,
    "Mirrored variable `moving` is written with a value that may differ",
    "argument `x`",
)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        moving = rx.Variable(0.0, name="moving", trainable=False)

    def replica_step(x):
        moving.assign(0.5 * moving.value + 0.5 * jnp.mean(x))  # fault

    @rx.function
    def step(x):
        strategy.run(replica_step, args=(x,))

    x = np.array([1, 2, 3, 4], np.float32)
    return strategy, step, [moving], strategy.distribute_dataset([x])


def figures():
    """The copies of the moving mean, and that of one device."""
    return np.array([0.75, 1.75]), 1.25
