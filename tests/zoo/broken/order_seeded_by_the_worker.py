"""Each worker shuffles with a seed of its own, and the order is then shared out over the workers.

The parts are parts of different orders: some rows are read twice in an epoch and others never.
"""

from __future__ import annotations

import jax
import numpy as np

import replicax as rx

SEEN = "D1", "tensorflow/tensorflow#42146"
WORKERS = 2
NAMED_BY = rx.errors.CollectiveMismatchError, "order, first batch", "the same seed"


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

    x = np.arange(1, 17, dtype=np.float32)
    rows = rx.data.from_arrays(x).shuffle(seed=jax.process_index()).batch(8)
    return strategy, step, [w], strategy.distribute_dataset(rows)


def figures():
    """The rows of an epoch that are read, and those that there are."""
    orders = [np.random.default_rng(seed).permutation(16).reshape(2, 2, 4) for seed in (0, 1)]
    read = np.concatenate([orders[0][:, 0].ravel(), orders[1][:, 1].ravel()])
    return len(set(read.tolist())), 16
