"""Train a small network on real digits on several replicas, and prove that one device agrees.

The data are scikit-learn's 1,797 handwritten digits of 8x8 pixels. The network is trained twice
from the same weights on the same batches: by Replicax on every local accelerator (where there is
none, on four logical CPU devices), then by plain JAX on one device. The program ends with what
differs, and exits with 1 if that is more than float32 rounding explains.

    make demo
    make demo ARGS="--epochs 5 --replicas 3"
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits

import replicax as rx

optimizer = optax.sgd(0.1, momentum=0.9)

# --- the network -------------------------------------------------------------------------------


def initial_weights() -> dict[str, Any]:
    """Make the same random weights in every run."""
    rng = np.random.default_rng(0)

    def layer(*shape: int) -> dict[str, jax.Array]:
        spread = np.sqrt(2 / np.prod(shape[:-1]))
        return {
            "kernel": jnp.asarray(rng.normal(0, spread, shape), jnp.float32),
            "bias": jnp.zeros(shape[-1]),
        }

    return {
        "conv_1": layer(3, 3, 1, 16),
        "conv_2": layer(3, 3, 16, 32),
        "dense": layer(4 * 4 * 32, 10),
    }


def convolve(layer: dict[str, jax.Array], x: jax.Array, stride: int) -> jax.Array:
    """Convolve f32[B, H, W, C], halve it by a stride of 2, and apply a relu."""
    x = jax.lax.conv_general_dilated(
        x, layer["kernel"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(x + layer["bias"])


def predict(weights: dict[str, Any], images: jax.Array) -> jax.Array:
    """Score each class of each image: f32[B, 8, 8, 1] -> f32[B, 10]."""
    x = convolve(weights["conv_1"], images, stride=1)
    x = convolve(weights["conv_2"], x, stride=2)
    return x.reshape(len(x), -1) @ weights["dense"]["kernel"] + weights["dense"]["bias"]


def score(weights: dict[str, Any], batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Return the loss f32[B] of each row, and whether its digit was found, bool[B]."""
    images, labels = batch
    logits = predict(weights, images)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses, jnp.argmax(logits, axis=1) == labels


# --- one step, on several replicas and on one device -------------------------------------------


class Batch(NamedTuple):
    """Rows of the data: images f32[B, 8, 8, 1] and labels i32[B]."""

    images: Any
    labels: Any


class State(NamedTuple):
    """What a step replaces."""

    weights: dict[str, Any]
    optimizer: Any

    @classmethod
    def initial(cls) -> State:
        """Start a training."""
        weights = initial_weights()
        return cls(weights, optimizer.init(weights))

    def updated(self, gradients: dict[str, Any]) -> State:
        """Take one step of the optimizer."""
        updates, new = optimizer.update(gradients, self.optimizer, self.weights)
        return State(optax.apply_updates(self.weights, updates), new)


Step = Callable[[State, Any], tuple[State, tuple[jax.Array, jax.Array]]]


def replicated_step(strategy: rx.Strategy) -> Step:
    """Make the step that all replicas take together."""

    def replica_step(state: State, batch: Batch) -> Any:  # sees the rows of one replica
        ctx = rx.get_replica_context()

        def mean_loss(weights: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
            losses, found = score(weights, batch)
            return ctx.global_mean(losses), ctx.global_mean(found)  # over the global batch

        (loss, accuracy), gradients = jax.value_and_grad(mean_loss, has_aux=True)(state.weights)
        gradients = ctx.all_reduce("mean", gradients)  # leave it out: an error, not a wrong number
        return state.updated(gradients), (loss, accuracy)

    @rx.function(donate="state")
    def train_step(state: State, batch: Batch) -> Any:  # sees the global batch
        return strategy.run(replica_step, args=(state, batch))

    return train_step


@jax.jit
def plain_step(state: State, batch: Batch) -> Any:
    """Take the same step on one device, without Replicax."""

    def mean_loss(weights: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        losses, found = score(weights, batch)
        return jnp.mean(losses), jnp.mean(found)

    (loss, accuracy), gradients = jax.value_and_grad(mean_loss, has_aux=True)(state.weights)
    return state.updated(gradients), (loss, accuracy)


def accuracy_on(strategy: rx.Strategy, weights: dict[str, Any], data: Batch, size: int) -> float:
    """Share of all rows of the data whose digit is found."""

    @rx.function
    def count(weights: dict[str, Any], batch: Batch) -> jax.Array:
        def replica_count(weights: dict[str, Any], batch: Batch) -> jax.Array:
            return rx.get_replica_context().global_sum(score(weights, batch)[1])

        return strategy.run(replica_count, args=(weights, batch))

    batches = strategy.distribute_dataset(data, rx.InputOptions(global_batch_size=size))
    return sum(int(count(weights, batch)) for batch in batches) / len(data.labels)


# --- the training ------------------------------------------------------------------------------


@dataclass
class History:
    """What a training leaves behind."""

    losses: list[float] = field(default_factory=list)  # one a step
    weights: list[dict[str, Any]] = field(default_factory=list)  # one an epoch
    images_per_second: list[float] = field(default_factory=list)  # one an epoch


def shuffled(data: Batch, size: int, epoch: int) -> list[Batch]:
    """Cut the data into global batches; the last one is as short as it comes."""
    order = np.random.default_rng(epoch).permutation(len(data.labels))
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    return [Batch(data.images[rows], data.labels[rows]) for rows in parts]


def train(
    step: Step,
    distribute: Callable[[list[Batch]], Iterable[Any]],
    data: Batch,
    options: argparse.Namespace,
    show: Callable[..., None],
) -> History:
    """Train from the initial weights, on the same batches whatever the step is."""
    state, history = State.initial(), History()
    for epoch in range(options.epochs):
        batches = shuffled(data, options.batch, epoch)
        rows, totals, start = 0, np.zeros(2), time.perf_counter()
        for global_batch, batch in zip(batches, distribute(batches), strict=True):
            state, metrics = step(state, batch)
            loss, accuracy = map(float, metrics)
            history.losses.append(loss)
            rows += len(global_batch.labels)
            totals += len(global_batch.labels) * np.array([loss, accuracy])
            rate = rows / (time.perf_counter() - start)
            loss, accuracy = totals / rows
            show(epoch=epoch + 1, loss=loss, accuracy=accuracy, rate=rate, end=batch is batches[-1])
        history.images_per_second.append(rate)
        history.weights.append(jax.tree.map(np.array, state.weights))
    return history
