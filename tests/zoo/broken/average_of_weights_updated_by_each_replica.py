"""A moving average of the weights sums up what every replica adds to it.

All replicas add the same, so the average moves twice as fast as it should: 0.2 and not 0.1.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "E2", "tensorflow/addons#740"
NAMED_BY = "parity", "`average`", "What changes is 2 times that of one device", "are summed"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
        average = rx.Variable(0.0, name="average", trainable=False, aggregation="sum")

    def replica_step(x):
        ctx = rx.get_replica_context()
        average.assign_add(0.1 * (w.value - average.value))  # fault
        loss, gradients = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        w.assign_sub(0.01 * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w, average], strategy.distribute_dataset([x])


def figures():
    """The average after a step, and that of one device."""
    return 0.2, 0.1
