"""Each worker reads its own files and gives its rows to the step as a plain array.

A plain array is one value for all replicas, so the workers would compute with different ones.
"""

from __future__ import annotations

import jax
import numpy as np

import replicax as rx

SEEN = "D1", "tensorflow/tensorflow#56513"
WORKERS = 2
NAMED_BY = rx.errors.CollectiveMismatchError, "The workers disagree on `x`", "distribute_dataset"


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

    mine = np.arange(1, 5, dtype=np.float32) + 4 * jax.process_index()  # fault
    return strategy, step, [w], [mine]
