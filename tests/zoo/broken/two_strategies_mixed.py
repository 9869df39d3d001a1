"""The model belongs to one strategy, and the step runs under another.

Its copies lie on devices that the step does not use, and nothing keeps them in step with it.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "E10", "tensorflow/tensorflow#61314"
NAMED_BY = (
    rx.errors.MixedStrategiesError,
    "Variable `w` of MirroredStrategy",
    "was read in a replica of MirroredStrategy",
)


def make():
    training = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    evaluation = rx.MirroredStrategy(["cpu:2", "cpu:3"])
    with training.scope():
        w = rx.Variable(1.0, name="w")

    def replica_step(x):
        return rx.get_replica_context().global_mean((w.value * x - 2 * x) ** 2)

    @rx.function
    def step(x):
        return evaluation.run(replica_step, args=(x,))  # fault

    x = np.arange(1, 5, dtype=np.float32)
    return evaluation, step, [w], evaluation.distribute_dataset([x])
