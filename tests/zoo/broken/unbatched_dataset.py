"""The dataset yields single rows, which are taken for global batches.

A row of 64 features would be cut into two batches of 32 numbers.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "D10", "OpenNMT/OpenNMT-tf#540"
NAMED_BY = (
    rx.errors.InvalidArgumentError,
    "is not a global batch",
    "Batch the dataset to the global batch",
)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(np.zeros(64, np.float32), name="w")

    def replica_step(x, y):
        ctx = rx.get_replica_context()
        loss, gradients = rx.value_and_grad(lambda: ctx.global_mean((x @ w.value - y) ** 2), [w])()
        w.assign_sub(0.01 * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(batch):
        return strategy.run(replica_step, args=batch)

    x = np.ones((4, 64), np.float32)
    dataset = strategy.distribute_dataset(rx.data.from_arrays((x, x.sum(1))))  # fault: no `.batch`
    return strategy, step, [w], dataset
