"""Gradients are reduced only where a replica's loss is large: each replica decides for itself.

The replicas that reduce wait for ever for those that do not.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "E3", "keras-team/keras#20582"
NAMED_BY = (
    rx.errors.VaryingControlFlowError,
    "collective `psum`",
    "a branch that some replicas may not take",
)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_step(w, x):
        ctx = rx.get_replica_context()
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((w * x - 2 * x) ** 2))(w)
        gradient = jax.lax.cond(  # fault
            loss > 5, lambda: ctx.all_reduce("mean", gradient), lambda: jnp.zeros_like(gradient)
        )
        return w - 0.01 * ctx.all_reduce("mean", gradient), loss

    @rx.function
    def step(w, x):
        return strategy.run(replica_step, args=(w, x))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, jnp.float32(1), strategy.distribute_dataset([x])
