"""All rows go to replica 0, and the others get an empty piece.

The numbers are right, since rows are counted and not replicas. One device works; the others wait.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "L4", "keras-team/keras#20035"
NAMED_BY = "rows", "Replica(s) 1 hold no rows"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        ctx = rx.get_replica_context()
        loss, gradients = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        w.assign_sub(0.01 * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)

    def batches(context):
        return [x] if context.input_pipeline_id == 0 else [x[:0]]  # fault

    options = rx.InputOptions(replication_mode="per_replica")
    dataset = strategy.distribute_datasets_from_function(batches, options)
    return strategy, step, [w], dataset


def figures():
    """The rows of each replica, and what they should be."""
    return np.array([4, 0]), np.array([2, 2])
