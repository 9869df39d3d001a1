"""An optimizer is given a replica's own gradients.

Its moments and the weights are shared by all replicas, and would be set by each to other values.
"""

from __future__ import annotations

import numpy as np
import optax

import replicax as rx

NAMED_BY = (
    rx.errors.VaryingWriteError,
    "`rx.apply_gradients` was given values that may differ",
    "Combine the gradients first",
)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
        optimizer = rx.Optimizer(optax.adam(0.1), [w])

    def replica_step(x):
        ctx = rx.get_replica_context()
        loss, gradients = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        rx.apply_gradients(optimizer, gradients)  # fault
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x])
