"""Only replica 0 writes the variable, in a step without `rx.function`.

The copies would be 1 and 0.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "E3", "tensorflow/tensorflow#59487"
NAMED_BY = rx.errors.VaryingWriteError, "variable `steps`", "did not write it"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        steps = rx.Variable(0.0, name="steps", trainable=False)

    def replica_step(x):
        if rx.get_replica_context().replica_id_in_sync_group == 0:
            steps.assign_add(1.0)  # fault
        return x

    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [steps], strategy.distribute_dataset([x])


def figures():
    """The copies of the variable, and that of one device."""
    return np.array([1, 0]), 1
