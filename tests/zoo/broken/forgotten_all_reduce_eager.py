"""Each replica subtracts its own gradient, in a step without `rx.function`.

Nothing is traced, so nothing is proved; the replicas' weights are 1.05 and 1.25, and drift apart.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

NAMED_BY = (
    rx.errors.VaryingWriteError,
    "variable `w` was written with different values on different replicas",
)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        ctx = rx.get_replica_context()
        _, (gradient,) = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        w.assign_sub(0.01 * gradient)  # fault

    def step(x):
        strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x])


def figures():
    """The weights of two replicas, and of one device."""
    x = np.arange(1, 5)
    gradients = 2 * (x - 2 * x) * x
    # The gradient of a global mean on a replica is the number of replicas times its share.
    return 1 - 0.01 * gradients.reshape(2, 2).mean(1), 1 - 0.01 * gradients.mean()
