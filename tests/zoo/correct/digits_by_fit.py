"""Handwritten digits with Keras: the model is trained by `fit`."""

from __future__ import annotations

import keras
from sklearn.datasets import load_digits

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])

    images, labels = load_digits(return_X_y=True)
    data = rx.data.from_arrays((images[:20].astype("float32") / 16, labels[:20])).batch(8)
    return strategy, model, model, strategy.distribute_dataset(data)
