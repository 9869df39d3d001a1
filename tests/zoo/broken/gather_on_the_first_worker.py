"""Worker 0 gathers the predictions of an evaluation for its log, and the others do not.

A gather is a collective: worker 0 waits for ever, or takes what the others send for something else.
"""

from __future__ import annotations

import jax
import numpy as np

import replicax as rx

SEEN = "F5", "google/orbax#211"
WORKERS = 2
NAMED_BY = rx.errors.CollectiveMismatchError, "The workers met in different calls", "if is_chief:"


def make():
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
    log = []

    @rx.function
    def predict(x):
        return strategy.run(lambda x: w.value * x, args=(x,))

    def step(x):
        predictions = predict(x)
        if jax.process_index() == 0:
            log.append(strategy.gather(predictions, axis=0))  # fault
        return strategy.reduce("mean", predictions, axis=0)

    x = np.arange(1, 9, dtype=np.float32)
    return strategy, step, [w], strategy.distribute_dataset([x, x])
