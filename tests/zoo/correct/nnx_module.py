"""A module and an optimizer of Flax NNX, adopted once and used in place."""

from __future__ import annotations

import numpy as np
import optax
from flax import nnx

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
        rx.nnx.adopt(model, optimizer)

    def replica_step(x, y):
        ctx = rx.get_replica_context()

        def loss_fn(model):
            return ctx.global_mean((model(x)[:, 0] - y) ** 2)

        loss, gradients = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, ctx.all_reduce("mean", gradients))
        return loss

    @rx.function
    def step(batch):
        return strategy.run(replica_step, args=batch)

    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    dataset = strategy.distribute_dataset((x, x.sum(1)), rx.InputOptions(global_batch_size=4))
    return strategy, step, (model, optimizer), dataset
