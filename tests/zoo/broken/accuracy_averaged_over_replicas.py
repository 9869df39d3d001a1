"""Each replica computes the accuracy of its rows, and the accuracies are averaged.

Of three rows replica 0 has two right ones and replica 1 a wrong one: 0.5, and it should be 2/3.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "B14", "Nixtla/neuralforecast#1558"
NAMED_BY = (
    rx.errors.UnusedMaskError,
    "variable `accuracy`",
    "sum or mean over the rows",
    "padding must not count",
)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        accuracy = rx.Variable(0.0, name="accuracy", trainable=False)

    def replica_step(label, guess):
        right = jnp.mean((label == guess).astype(jnp.float32))  # fault
        accuracy.assign(rx.get_replica_context().all_reduce("mean", right))

    @rx.function
    def step(batch):
        strategy.run(replica_step, args=batch)

    batch = np.array([1, 2, 3]), np.array([1, 2, 0])
    return strategy, step, [accuracy], strategy.distribute_dataset([batch])


def figures():
    """The accuracy, and that of one device."""
    return (1.0 + 0.0) / 2, 2 / 3
