"""Every replica's input pipeline reads all rows: the function ignores its context.

Two replicas do the work of one, an epoch is as long as ever, and no number looks wrong.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "D7", "huggingface/datasets#5360"
NAMED_BY = "rows", "Replicas hold the same rows", "input_pipeline_id"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        ctx = rx.get_replica_context()
        loss, gradients = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        w.assign_sub(0.01 * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(x):
        return strategy.run(replica_step, args=(x,))

    x = np.arange(1, 9, dtype=np.float32)
    options = rx.InputOptions(replication_mode="per_replica")
    dataset = strategy.distribute_datasets_from_function(
        lambda context: rx.data.from_arrays(x).batch(2),  # fault
        options,
    )
    return strategy, step, [w], dataset


def figures():
    """The rows of the first step, and those of one device with a global batch of four."""
    x = np.arange(1, 9)
    return np.concatenate([x[:2], x[:2]]), x[:4]
