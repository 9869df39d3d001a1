"""The whole batch is given to each replica, because nobody has shared it out.

All replicas compute all rows: with two devices a step takes as long as with one.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "L4", "keras-team/keras#20035"
NAMED_BY = "rows", "Replicas hold the same rows", "strategy.distribute_dataset"


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

    x = np.arange(1, 9, dtype=np.float32)
    dataset = [
        strategy.distribute_values_from_function(lambda context, rows=rows: rows)  # fault
        for rows in (x[:4], x[4:])
    ]
    return strategy, step, [w], dataset
