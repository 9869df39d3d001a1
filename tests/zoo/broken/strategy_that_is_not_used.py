"""A strategy is made, but neither the variables nor the step know of it.

The job trains on one device, with the right numbers, and the other devices wait for ever.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "G7", "tensorflow/models#7885"
NAMED_BY = "collectives", "ran on one device: `strategy.run` was never called"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    w = rx.Variable(1.0, name="w")

    @rx.function
    def step(x):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((w * x - 2 * x) ** 2))(w.value)
        w.assign_sub(0.01 * gradient)
        return loss

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w], [x, x]
