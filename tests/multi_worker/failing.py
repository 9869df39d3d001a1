"""What the workers of `test_failure.py` run."""

from __future__ import annotations

import os


def train():
    """Worker 1 raises after its third step; the error of the other one comes back."""
    import jax.numpy as jnp

    import replicax as rx

    strategy = rx.MultiWorkerMirroredStrategy(timeouts=rx.Timeouts(start=45))
    with strategy.scope():
        w = rx.Variable(jnp.zeros(2000), name="w")

    @rx.function
    def step():
        strategy.run(lambda: w.assign_add(rx.get_replica_context().all_reduce("mean", w.value + 1)))

    for number in range(10_000):
        step()
        if os.environ["RANK"] == "1" and number == 3:
            raise KeyError("a key of the user's")
