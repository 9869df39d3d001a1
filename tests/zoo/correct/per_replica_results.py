"""Each replica returns the predictions of its rows, which the step gathers."""

from __future__ import annotations

import numpy as np

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
        seen = rx.Variable(np.float32(0), name="seen", trainable=False)

    @rx.function
    def step(x):
        guesses = strategy.run(lambda x: w.value * x, args=(x,))
        rows = strategy.run(lambda x: rx.get_replica_context().global_sum(x * 0 + 1), args=(x,))
        seen.assign_add(rows)
        return strategy.gather(guesses, axis=0)

    x = np.arange(1, 9, dtype=np.float32)
    options = rx.InputOptions(global_batch_size=4)
    return strategy, step, [w, seen], strategy.distribute_dataset(x, options)
