"""Variables in a strategy's scope, and a step that updates them in place."""

from __future__ import annotations

import numpy as np

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
        b = rx.Variable(0.0, name="b")

    def replica_step(x):
        ctx = rx.get_replica_context()

        def loss_fn():
            return ctx.global_mean((w.value * x + b.value - 2 * x) ** 2)

        loss, gradients = rx.value_and_grad(loss_fn, [w, b])()
        for variable, gradient in zip([w, b], ctx.all_reduce("mean", gradients), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w, b], strategy.distribute_dataset([x, x + 1])
