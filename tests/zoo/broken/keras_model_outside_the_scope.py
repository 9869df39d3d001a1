"""A Keras model is built before the scope is entered, and then used under the strategy.

Its weights have one copy, on one device: elsewhere the job trains on that device alone.
"""

from __future__ import annotations

import keras
import numpy as np

import replicax as rx

SEEN = "E1", "amaiya/ktrain#513"
NAMED_BY = rx.errors.MixedStrategiesError, "/scores/kernel`", "outside of the strategy's scope"


def make():
    scores = keras.layers.Dense(1, use_bias=False, name="scores")
    model = keras.Sequential([keras.Input((1,)), scores])  # fault
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.01)

    def replica_step(x):
        ctx = rx.get_replica_context()

        def loss_fn():
            return ctx.global_mean((model(x) - 2 * x)[:, 0] ** 2)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients), model.trainable_variables)
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 5, dtype=np.float32)[:, None]
    return strategy, step, model, strategy.distribute_dataset([x])
