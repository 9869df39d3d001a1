"""The mean of the replicas' mean losses, on a last batch that they cannot share evenly.

Three rows are shared out 2 and 1; the lone row counts as much as the other two together.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "A8", "google/flax#262"
NAMED_BY = (
    rx.errors.UnusedMaskError,
    "variable `w`",
    "sum or mean over the rows",
    "padding must not count",
)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        def loss_fn():
            return jnp.mean((w.value * x - 2 * x) ** 2)  # fault

        _, gradients = rx.value_and_grad(loss_fn, [w])()
        w.assign_sub(0.01 * rx.get_replica_context().all_reduce("mean", gradients)[0])

    @rx.function
    def step(x):
        strategy.run(replica_step, args=(x,))

    x = np.arange(1, 8, dtype=np.float32)
    options = rx.InputOptions(global_batch_size=4)
    return strategy, step, [w], strategy.distribute_dataset(x, options)


def figures():
    """The loss of the last batch as a mean of means, and as one mean."""
    losses = np.array([5, 6, 7]) ** 2
    return (losses[:2].mean() + losses[2]) / 2, losses.mean()
