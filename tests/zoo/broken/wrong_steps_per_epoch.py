"""The steps of an epoch are counted as if each replica took a batch of the global size.

Half of the rows are never read: 8 of 16.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "D5", "tensorflow/tensorflow#36153"
NAMED_BY = "rows", "8 of 16 rows"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        ctx = rx.get_replica_context()
        loss, gradients = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        w.assign_sub(0.001 * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 17, dtype=np.float32)
    steps = len(x) // (4 * strategy.num_replicas_in_sync)  # fault
    dataset = rx.data.from_arrays(x).batch(4).take(steps)
    return strategy, step, [w], strategy.distribute_dataset(dataset)


def figures():
    """The rows of an epoch, and those that there are."""
    return 8, 16
