"""Gradients of a mean over the global batch are summed over the replicas.

The learning rate is multiplied by the number of replicas: w is 1.30 and not 1.15.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "B4", "tensorflow/tensorflow#48875"
NAMED_BY = "parity", "`w`", "What changes is 2 times that of one device", "are summed"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        ctx = rx.get_replica_context()
        loss, gradients = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        (gradient,) = ctx.all_reduce("sum", gradients)  # fault
        w.assign_sub(0.01 * gradient)
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x])


def figures():
    """The weight after a step, and that of one device."""
    return 1.3, 1.15
