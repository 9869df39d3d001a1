"""The step counter that the learning rate is computed from is a Python number.

The step is traced once, so the number stays what it was then: the rate never decays.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

NAMED_BY = "trace", "another program each time", "something in Python that changes"


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
    done = [0]

    def replica_step(x, rate):
        ctx = rx.get_replica_context()
        loss, gradients = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        w.assign_sub(rate * ctx.all_reduce("mean", gradients)[0])
        return loss

    @rx.function
    def step(x):
        done[0] += 1  # fault
        return strategy.run(replica_step, args=(x, 0.02 / done[0]))

    x = np.arange(1, 5, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x, x])


def figures():
    """The weight after two steps with one rate, and with a rate that decays."""
    return 2 - 0.7 * 0.7, 2 - 0.7 * 0.85
