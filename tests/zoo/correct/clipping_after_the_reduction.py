"""The gradient of the global batch is clipped: after the reduction."""

from __future__ import annotations

import numpy as np

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x, y):
        ctx = rx.get_replica_context()
        _, gradients = rx.value_and_grad(lambda: ctx.global_mean((w.value * x - y) ** 2), [w])()
        gradients, norm = rx.clip_by_global_norm(ctx.all_reduce("mean", gradients), 1.0)
        w.assign_sub(gradients[0])
        return norm

    @rx.function
    def step(batch):
        return strategy.run(replica_step, args=batch)

    batch = np.array([1, 1], np.float32), np.array([2, -9], np.float32)
    return strategy, step, [w], strategy.distribute_dataset([batch])
