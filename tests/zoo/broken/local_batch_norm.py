"""BatchNorm normalises with the statistics of each replica's rows.

With two rows a replica every row becomes plus or minus one, whatever it was.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "C5", "tensorflow/tensorflow#60438"
NAMED_BY = "parity", "`scale`", "own rows together", "then `square` at"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        scale = rx.Variable(1.0, name="scale")

    def normalized(x):
        return (x - jnp.mean(x)) / jnp.sqrt(jnp.var(x) + 1e-3)  # fault

    def replica_step(x):
        ctx = rx.get_replica_context()

        def loss_fn():
            return ctx.global_mean((scale.value * normalized(x) - 2 * x) ** 2)

        loss, gradients = rx.value_and_grad(loss_fn, [scale])()
        scale.assign_sub(0.01 * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.array([1, 2, 30, 40], np.float32)
    return strategy, step, [scale], strategy.distribute_dataset([x])


def figures():
    """What the rows become on two replicas, and on one device."""
    x = np.array([[1, 2], [30, 40]])
    local = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3)
    return local, (x - x.mean()) / np.sqrt(x.var() + 1e-3)
