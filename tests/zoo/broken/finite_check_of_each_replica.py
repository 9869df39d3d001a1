"""Each replica looks for infinities in its own gradient, to decide whether it skips the step.

Where one overflows and the other does not, one waits in the reduction and the other goes on.
"""

from __future__ import annotations

import numpy as np
import optax

import replicax as rx

SEEN = "J1", "keras-team/keras#18666"
NAMED_BY = (
    rx.errors.VaryingWriteError,
    "`rx.precision.all_finite` was given values that may differ",
    "Combine the gradients first",
)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
        optimizer = rx.Optimizer(optax.sgd(0.01), [w])

    def replica_step(x):
        ctx = rx.get_replica_context()
        _, gradients = rx.value_and_grad(lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w])()
        is_finite = rx.precision.all_finite(gradients)  # fault
        rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients), apply_if=is_finite)

    @rx.function
    def step(x):
        strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x])
