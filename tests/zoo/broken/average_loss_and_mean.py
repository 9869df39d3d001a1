"""The loss is divided by the global batch size, and the gradients are averaged besides.

The step is divided by the number of replicas once too often: w is 1.075 and not 1.15.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "B2", "keras-team/keras#16285"
NAMED_BY = "parity", "`w`", "What changes is 1/2 of that of one device", "once too often"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        def loss_fn():
            return rx.compute_average_loss((w.value * x - 2 * x) ** 2)

        _, gradients = rx.value_and_grad(loss_fn, [w])()
        (gradient,) = rx.get_replica_context().all_reduce("mean", gradients)  # fault
        w.assign_sub(0.01 * gradient)

    @rx.function
    def step(x):
        strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x])


def figures():
    """The weight after a step, and that of one device."""
    return 1.075, 1.15
