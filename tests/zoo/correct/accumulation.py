"""Gradients of two micro-batches are added up, and the replicas meet once."""

from __future__ import annotations

import numpy as np

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        loss, gradients = rx.accumulate(lambda x: (w.value * x - 2 * x) ** 2, x, 2, [w])
        w.assign_sub(0.01 * gradients[0])
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 9, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x])
