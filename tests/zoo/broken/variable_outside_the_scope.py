"""The momentum of the optimizer is made outside of the strategy's scope.

It has one copy, on one device, and no replica can tell what the others do with it.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "E1", "tensorflow/tensorflow#32561"
NAMED_BY = rx.errors.MixedStrategiesError, "Variable `momentum`", "outside of the strategy's scope"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
    momentum = rx.Variable(0.0, name="momentum")  # fault

    def replica_step(x):
        ctx = rx.get_replica_context()
        _, (gradient,) = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        momentum.assign(0.9 * momentum.value + ctx.all_reduce("mean", gradient))
        w.assign_sub(0.01 * momentum.value)

    @rx.function
    def step(x):
        strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w, momentum], strategy.distribute_dataset([x])
