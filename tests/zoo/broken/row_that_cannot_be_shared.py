"""The metric of an evaluation leaves out a row that the replicas cannot share evenly.

Of nine rows the last one is dropped, and that is the one that the model has wrong.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "A9", "google/flax#264"
NAMED_BY = "rows", "8 of 9 rows", "remainder='drop'"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        accuracy = rx.metrics.Mean(name="accuracy")

    def replica_step(correct):
        accuracy.update_state(correct)

    @rx.function
    def step(correct):
        strategy.run(replica_step, args=(correct,))

    correct = np.array([1] * 8 + [0], np.float32)
    options = rx.InputOptions(global_batch_size=4, remainder="drop")  # fault
    return strategy, step, accuracy, strategy.distribute_dataset(correct, options)


def figures():
    """The accuracy of eight rows, and of all."""
    return 1.0, 8 / 9
