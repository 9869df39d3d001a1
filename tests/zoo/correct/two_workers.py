"""Two worker processes, variables in place, and a last batch of one row."""

from __future__ import annotations

import numpy as np

import replicax as rx

WORKERS = 2


def make():
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        ctx = rx.get_replica_context()
        loss, gradients = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        w.assign_sub(0.001 * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    rows = rx.data.from_arrays(np.arange(1, 10, dtype=np.float32)).shuffle(seed=0).batch(4)
    return strategy, step, [w], strategy.distribute_dataset(rows)
