"""Each replica keeps a moving mean of its own rows; replica 0's is the one that is read and saved.

It is how BatchNorm works on several devices where nobody says which copy counts.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "C1", "tensorflow/tensorflow#7439"
NAMED_BY = "parity", "`moving`", "what replica 0 would do alone", "ONLY_FIRST_REPLICA"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        moving = rx.Variable(
            0.0,
            name="moving",
            trainable=False,
            synchronization="on_read",
            aggregation="only_first_replica",  # fault
        )

    def replica_step(x):
        moving.assign(0.5 * moving.value + 0.5 * jnp.mean(x))

    @rx.function
    def step(x):
        strategy.run(replica_step, args=(x,))

    x = np.array([1, 2, 3, 4], np.float32)
    return strategy, step, [moving], strategy.distribute_dataset([x])


def figures():
    """The moving mean that is read, and that of one device."""
    return 0.75, 1.25
