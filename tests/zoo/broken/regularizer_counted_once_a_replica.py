"""The weight decay is added to each replica's share of the loss, and the shares are added up.

It counts once for each replica: w is 1.13 and not 1.14.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "B4", "tensorflow/tensorflow#48912"
NAMED_BY = "parity", "`w`", "once a replica"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        def loss_fn():
            losses = (w.value * x - 2 * x) ** 2
            return rx.compute_average_loss(losses) + 0.5 * w.value**2  # fault

        _, gradients = rx.value_and_grad(loss_fn, [w])()
        (gradient,) = rx.get_replica_context().all_reduce("sum", gradients)
        w.assign_sub(0.01 * gradient)

    @rx.function
    def step(x):
        strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x])


def figures():
    """The weight after a step, and that of one device."""
    return 1.13, 1.14
