"""Handwritten digits with Keras: `fit` on several replicas, and on one device for comparison.

The same model is trained twice, by `rx.keras.fit` on the replicas of a strategy and by Keras alone.
Histories, weights and predictions must agree; otherwise the exit status is 1.
"""

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

ROWS = 1437  # of 1,797; the others are for validation


def digits() -> tuple[Any, Any]:
    """Images f32[N, 8, 8, 1] and labels i32[N], in one random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (images[order] / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    return images, labels[order].astype(np.int32)


def compiled_model() -> Any:
    """Make the same small network each time."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("silu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2, seed=1),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model


def largest_difference(one: Any, other: Any) -> float:
    """Largest difference of two lists of arrays."""
    pairs = zip(one, other, strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)


def main(arguments: list[str] | None = None) -> int:
    """Train twice and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=100, help="rows of a global batch")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args(arguments)
    rx.devices.logical(cpu=options.replicas)
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(options.replicas)])
    images, labels = digits()
    data: dict[str, Any] = {
        "x": images[:ROWS],
        "y": labels[:ROWS],
        "validation_data": (images[ROWS:], labels[ROWS:]),
        "batch_size": options.batch,
        "epochs": options.epochs,
        "shuffle": False,
        "verbose": 0,
    }

    with strategy.scope():
        model = compiled_model()
    history = rx.keras.fit(model, **data).history
    one = compiled_model()
    expected = one.fit(**data).history

    for epoch in range(options.epochs):
        line = ", ".join(f"{name} {values[epoch]:.4f}" for name, values in history.items())
        print(f"epoch {epoch + 1}: {line}")
    names = sorted(expected)
    losses = largest_difference([history[n] for n in names], [expected[n] for n in names])
    weights = largest_difference(model.get_weights(), one.get_weights())
    print(f"{options.replicas} replicas and one device differ by at most")
    print(f"  {losses:.1e} in losses and metrics, {weights:.1e} in weights")
    return int(not max(losses, weights) <= options.tolerance)


if __name__ == "__main__":
    sys.exit(main())
