"""Each step appends its loss to a list, for a mean at the end of the epoch.

The list gets one entry, when the step is traced, and that is no number.
"""

from __future__ import annotations

import jax
import numpy as np

import replicax as rx

NAMED_BY = jax.errors.UnexpectedTracerError, "had a side effect", "losses_in_a_python_list.py"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
        average = rx.Variable(0.0, name="average", trainable=False)
    losses = []

    def replica_step(x):
        ctx = rx.get_replica_context()
        loss, gradients = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        w.assign_sub(0.01 * ctx.all_reduce("mean", gradients)[0])
        losses.append(loss)

    @rx.function
    def train(x):
        strategy.run(replica_step, args=(x,))

    def step(x):
        train(x)
        average.assign(sum(losses) / len(losses))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w, average], strategy.distribute_dataset([x, x])
