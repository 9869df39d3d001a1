"""More steps are asked of `fit` than an epoch has batches.

The input ends in the middle of an epoch, which elsewhere ends the job with an error of the data.
"""

from __future__ import annotations

import keras
import numpy as np

import replicax as rx

SEEN = "D5", "tensorflow/tensorflow#34821"
NAMED_BY = (
    rx.errors.InvalidArgumentError,
    "`steps_per_epoch` = 5, but the data has 3 global batches",
)


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile("sgd", "mse")

    x = np.arange(10, dtype=np.float32)[:, None]
    rx.keras.fit(model, x, x, batch_size=4, steps_per_epoch=5, epochs=2, verbose=0)  # fault
