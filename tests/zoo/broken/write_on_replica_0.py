"""Only replica 0 writes the variable, under an `if` on its number.

Elsewhere the other copies keep the old value, or the branch is compiled for all of them.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "E3", "tensorflow/tensorflow#27716"
NAMED_BY = rx.errors.VaryingControlFlowError, "Python branched on a traced value", "the replica id"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        steps = rx.Variable(0.0, name="steps", trainable=False)

    def replica_step(x):
        if rx.get_replica_context().replica_id_in_sync_group == 0:  # fault
            steps.assign_add(1.0)
        return x

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [steps], strategy.distribute_dataset([x])
