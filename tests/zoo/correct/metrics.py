"""An evaluation: metrics that count the real rows of every replica."""

from __future__ import annotations

import numpy as np

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        accuracy = rx.metrics.SparseCategoricalAccuracy(name="accuracy")

    def replica_step(label, scores):
        accuracy.update_state(label, scores)

    @rx.function
    def step(batch):
        strategy.run(replica_step, args=batch)

    scores = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    label = np.arange(7) % 3
    options = rx.InputOptions(global_batch_size=4)
    return strategy, step, accuracy, strategy.distribute_dataset((label, scores), options)
