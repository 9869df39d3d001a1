"""Of several devices the strategy gets one, as with a variable that hides the others.

Everything works, on one device; no message says that the others are not used.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "G6", "google/jax#16788"
NAMED_BY = "devices", "1 replica, 8 devices"


def make():
    strategy = rx.MirroredStrategy(["cpu:0"])  # fault
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

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x])
