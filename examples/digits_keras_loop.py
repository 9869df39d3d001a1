"""Handwritten digits with a Keras model in a training loop of one's own, on several replicas."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from sklearn.datasets import load_digits

import replicax as rx


def main(arguments: list[str] | None = None) -> int:
    """Train, and print the loss and the accuracy of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=100, help="rows of a global batch")
    parser.add_argument("--replicas", type=int, default=3)
    options = parser.parse_args(arguments)
    rx.devices.logical(cpu=options.replicas)
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(options.replicas)])
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)

    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(32, activation="silu", kernel_regularizer="l2"),
                keras.layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam(0.01)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    row_losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def replica_step(batch: Any) -> Any:  # this replica's own rows
        x, y = batch
        ctx = rx.get_replica_context()

        def loss_fn() -> Any:
            logits = model(x, training=True)
            return ctx.global_mean(row_losses(y, logits)) + sum(model.losses), logits

        variables = model.trainable_variables
        (loss, logits), gradients = rx.value_and_grad(loss_fn, variables, has_aux=True)()
        gradients = ctx.all_reduce("mean", gradients)  # forget it, and tracing raises an error
        rx.apply_gradients(optimizer, gradients, variables)
        accuracy.update_state(y, logits, sample_weight=ctx.example_mask)
        return loss

    @rx.function
    def train_step(batch: Any) -> Any:  # the global batch
        return strategy.run(replica_step, args=(batch,))

    data = rx.data.from_arrays((images, labels)).shuffle(seed=0).batch(options.batch)
    dataset = strategy.distribute_dataset(data)
    for epoch in range(options.epochs):
        accuracy.reset_state()
        losses = [float(train_step(batch)) for batch in dataset]
        mean = float(np.mean(losses))
        print(f"epoch {epoch + 1}: loss {mean:.4f}, accuracy {float(accuracy.result()):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
