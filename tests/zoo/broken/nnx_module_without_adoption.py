"""A module of Flax NNX is used in a replica function, and no strategy knows of it.

Its arrays lie on one device, and what a step writes to them would be lost.
"""

from __future__ import annotations

import numpy as np
import optax
from flax import nnx

import replicax as rx

SEEN = "E1", "tensorflow/recommenders-addons#272"
NAMED_BY = rx.errors.ContextError, "Linear", "Call `rx.nnx.adopt("


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.01), wrt=nnx.Param)  # fault

    def replica_step(x):
        ctx = rx.get_replica_context()
        loss, gradients = nnx.value_and_grad(
            lambda model: ctx.global_mean((model(x)[:, 0] - 2 * x[:, 0]) ** 2)
        )(model)
        optimizer.update(model, ctx.all_reduce("mean", gradients))
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)[:, None]
    return strategy, step, model, strategy.distribute_dataset([x])
