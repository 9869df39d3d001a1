"""Products in bfloat16, weights in float32, a loss scale, and a check of the reduced gradient."""

from __future__ import annotations

import numpy as np
import optax

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    policy = rx.precision.Policy("mixed_bfloat16")
    with strategy.scope():
        w = rx.Variable(np.zeros(3, np.float32), name="w")
        optimizer = rx.Optimizer(optax.sgd(0.1), [w])
        scale = rx.precision.LossScale(2.0**10)

    def replica_step(x, y):
        ctx = rx.get_replica_context()

        def loss_fn():
            guess = policy.to_variable(policy.to_compute(x) @ policy.to_compute(w.value))
            return scale.multiply(ctx.global_mean((guess - y) ** 2))

        loss, gradients = rx.value_and_grad(loss_fn, [w])()
        scale.apply_gradients(optimizer, ctx.all_reduce("mean", gradients))
        return scale.divide(loss)

    @rx.function
    def step(batch):
        return strategy.run(replica_step, args=batch)

    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    dataset = strategy.distribute_dataset([(x, x.sum(1))])
    return strategy, step, [w, scale.scale, scale.finite_steps], dataset
