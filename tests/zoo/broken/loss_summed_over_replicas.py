"""A loss that is the mean of the global batch on every replica is summed over the replicas.

The loss that is logged doubles with the number of replicas: 15 and not 7.5.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "B3", "tensorflow/tensorflow#45923"
NAMED_BY = rx.errors.InvalidArgumentError, "reduce('sum', ...)", "would count it once a replica"


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
        return strategy.reduce("sum", strategy.run(replica_step, args=(x,)), axis=None)  # fault

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x])


def figures():
    """The loss, and that of one device."""
    return 15.0, 7.5
