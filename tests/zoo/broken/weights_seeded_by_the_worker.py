"""Each worker draws initial weights from a seed of its own.

The workers' copies differ from the first step on, and gradients of different functions are mixed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

SEEN = "C8", "keras-team/keras#21261"
WORKERS = 2
NAMED_BY = rx.errors.CollectiveMismatchError, "The workers disagree on `w`"


def make():
    strategy = rx.MultiWorkerMirroredStrategy()

    def replica_step(w, x):
        ctx = rx.get_replica_context()
        loss, gradient = jax.value_and_grad(lambda w: ctx.global_mean((w * x - 2 * x) ** 2))(w)
        return w - 0.01 * ctx.all_reduce("mean", gradient), loss

    @rx.function
    def step(w, x):
        return strategy.run(replica_step, args=(w, x))

    w = jnp.float32(np.random.default_rng(jax.process_index()).normal())  # fault
    x = np.arange(1, 9, dtype=np.float32)
    return strategy, step, w, strategy.distribute_dataset([x])
