"""The accuracies of the replicas are added up, as losses are in tf.distribute.

With two replicas and every row right the accuracy is 2.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "B7", "keras-team/keras#19280"
NAMED_BY = "parity", "`accuracy`", "What changes is 2 times that of one device", "are summed"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        accuracy = rx.Variable(0.0, name="accuracy", trainable=False)

    def replica_step(label, guess):
        return jnp.mean((label == guess).astype(jnp.float32))

    @rx.function
    def step(batch):
        of_replicas = strategy.run(replica_step, args=batch)
        accuracy.assign(strategy.reduce("sum", of_replicas, axis=None))  # fault

    batch = np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4])
    return strategy, step, [accuracy], strategy.distribute_dataset([batch])


def figures():
    """The accuracy, and that of one device."""
    return 2.0, 1.0
