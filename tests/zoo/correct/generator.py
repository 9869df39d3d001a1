"""Rows come from a generator function, which can be read again but not counted."""

from __future__ import annotations

import numpy as np

import replicax as rx


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

    def rows():
        for i in range(1, 8):
            yield np.float32(i)

    return strategy, step, [w], strategy.distribute_dataset(rx.data.from_iterable(rows).batch(4))
