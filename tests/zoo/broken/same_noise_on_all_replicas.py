"""Images are augmented with NumPy's generator, which every replica starts from the same seed.

All replicas add the same noise, and so do all steps: a step has half as much of it as it seems.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "C6", "ecmwf/anemoi-core#595"
NAMED_BY = "random", "lay the same constant array over different rows"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        ctx = rx.get_replica_context()
        noise = np.random.default_rng(7).normal(size=x.shape).astype(np.float32)  # fault
        x = x + noise
        loss, gradients = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        w.assign_sub(0.01 * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x, x])
