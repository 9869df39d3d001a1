"""Each replica clips its own gradient to norm 1, and then they are averaged.

The gradients -2 and 20 are clipped to -1 and 1, which cancel: w stays 1, and one device goes to 0.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "J3", "tensorflow/tensorflow#33929"
NAMED_BY = (
    rx.errors.VaryingWriteError,
    "`rx.clip_by_global_norm` was given values that may differ",
    "Combine the gradients first",
)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x, y):
        ctx = rx.get_replica_context()
        _, gradients = rx.value_and_grad(lambda: ctx.global_mean((w.value * x - y) ** 2), [w])()
        gradients, _ = rx.clip_by_global_norm(gradients, 1.0)  # fault
        w.assign_sub(ctx.all_reduce("mean", gradients)[0])

    @rx.function
    def step(batch):
        strategy.run(replica_step, args=batch)

    batch = np.array([1, 1], np.float32), np.array([2, -9], np.float32)
    return strategy, step, [w], strategy.distribute_dataset([batch])


def figures():
    """The weight after a step, and that of one device."""
    gradients = 2 * (1 - np.array([2, -9]))
    return 1 - np.clip(gradients, -1, 1).mean(), 1 - np.clip(gradients.mean(), -1, 1)
