"""The arithmetic of tf.distribute: losses over the global batch size, gradients summed."""

from __future__ import annotations

import numpy as np

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        def loss_fn():
            replicas = rx.get_replica_context().num_replicas_in_sync
            losses = (w.value * x - 2 * x) ** 2
            return rx.compute_average_loss(losses) + 0.5 * w.value**2 / replicas

        loss, gradients = rx.value_and_grad(loss_fn, [w])()
        (gradient,) = rx.get_replica_context().all_reduce("sum", gradients)
        w.assign_sub(0.01 * gradient)
        return loss

    @rx.function
    def step(x):
        return strategy.reduce("sum", strategy.run(replica_step, args=(x,)), axis=None)

    x = np.arange(1, 6, dtype=np.float32)
    options = rx.InputOptions(global_batch_size=3)
    return strategy, step, [w], strategy.distribute_dataset(x, options)
