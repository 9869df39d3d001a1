"""Train a small network on real digits on several replicas, and compare with one device.

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits

import replicax as rx

# Float32 products everywhere: GPUs and TPUs would round the factors to fewer bits.
jax.config.update("jax_default_matmul_precision", "highest")

# --- the data ----------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Rows of the data: images f32[B, 8, 8, 1] and labels i32[B]."""

    images: Any
    labels: Any


def train_and_test_data() -> tuple[Batch, Batch]:
    """Split the digits, in one random order, into 1,437 and 360 rows."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (images[order] / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    labels = labels[order].astype(np.int32)
    return Batch(images[:1437], labels[:1437]), Batch(images[1437:], labels[1437:])


def shuffled(data: Batch, size: int, epoch: int) -> list[Batch]:
    """Cut the data into global batches; the last one keeps the rows that are left."""
    order = np.random.default_rng(epoch).permutation(len(data.labels))
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    return [Batch(data.images[rows], data.labels[rows]) for rows in parts]


# --- the network -------------------------------------------------------------------------------


def initial_weights() -> dict[str, Any]:
    """Make the same random weights in every run."""
    rng = np.random.default_rng(0)

    def layer(*shape: int) -> dict[str, jax.Array]:
        spread = np.sqrt(2 / np.prod(shape[:-1]))
        kernel = jnp.asarray(rng.normal(0, spread, shape), jnp.float32)
        return {"kernel": kernel, "bias": jnp.zeros(shape[-1])}

    return {
        "conv_1": layer(3, 3, 1, 16),
        "conv_2": layer(3, 3, 16, 32),
        "dense": layer(4 * 4 * 32, 10),
    }


def convolve(layer: dict[str, jax.Array], x: jax.Array, stride: int) -> jax.Array:
    """Convolve and activate: f32[B, H, W, C] -> f32[B, H / stride, W / stride, D]."""
    x = jax.lax.conv_general_dilated(
        x, layer["kernel"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.silu(x + layer["bias"])  # smooth: at the kink of a relu, rounding makes a jump


def predict(weights: dict[str, Any], images: jax.Array) -> jax.Array:
    """Score the ten digits for each image: f32[B, 8, 8, 1] -> f32[B, 10]."""
    x = convolve(weights["conv_1"], images, stride=1)
    x = convolve(weights["conv_2"], x, stride=2)
    return x.reshape(len(x), -1) @ weights["dense"]["kernel"] + weights["dense"]["bias"]


def loss_and_hits(weights: dict[str, Any], batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Return each row's loss, f32[B], and whether its digit was found, bool[B]."""
    logits = predict(weights, batch.images)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    return losses, jnp.argmax(logits, axis=1) == batch.labels


# --- one step, on several replicas and on one device -------------------------------------------

optimizer = optax.sgd(0.1, momentum=0.9)


class State(NamedTuple):
    """What a step replaces."""

    weights: Any
    momentum: Any


def initial_state() -> State:
    """Where every training starts."""
    weights = initial_weights()
    return State(weights, optimizer.init(weights))


def updated(state: State, gradients: Any) -> State:
    """Take one step of the optimizer."""
    updates, momentum = optimizer.update(gradients, state.momentum, state.weights)
    return State(optax.apply_updates(state.weights, updates), momentum)


@jax.jit
def plain_step(state: State, batch: Batch) -> Any:
    """Train on a batch on one device, without Replicax."""

    def loss_fn(weights: Any) -> Any:
        losses, hits = loss_and_hits(weights, batch)
        return jnp.mean(losses), jnp.mean(hits)

    (loss, accuracy), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.weights)
    return updated(state, gradients), (loss, accuracy)


def replicated_step(strategy: rx.Strategy) -> rx.Function:
    """Make the same step for all replicas of a strategy."""

    def replica_step(state: State, batch: Batch) -> Any:  # the batch: this replica's own rows
        ctx = rx.get_replica_context()

        def loss_fn(weights: Any) -> Any:
            losses, hits = loss_and_hits(weights, batch)
            return ctx.global_mean(losses), ctx.global_mean(hits)  # over all replicas' rows

        (loss, accuracy), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.weights)
        gradients = ctx.all_reduce("mean", gradients)  # forget it, and tracing raises an error
        return updated(state, gradients), (loss, accuracy)

    @rx.function(donate="state")
    def train_step(state: State, batch: Batch) -> Any:  # the batch: the global batch
        return strategy.run(replica_step, args=(state, batch))

    return train_step


def test_accuracy(strategy: rx.Strategy, weights: Any, data: Batch, size: int) -> float:
    """Share of the rows whose digit is found; each row counts once."""

    def replica_count(weights: Any, batch: Batch) -> jax.Array:
        return rx.get_replica_context().global_sum(loss_and_hits(weights, batch)[1])

    @rx.function
    def count(weights: Any, batch: Batch) -> jax.Array:
        return strategy.run(replica_count, args=(weights, batch))

    batches = strategy.distribute_dataset(data, rx.InputOptions(global_batch_size=size))
    return sum(int(count(weights, batch)) for batch in batches) / len(data.labels)


# --- a training --------------------------------------------------------------------------------


@dataclass
class History:
    """What a training leaves behind."""

    losses: list[float] = field(default_factory=list)  # one a step
    weights: list[Any] = field(default_factory=list)  # one tree of arrays an epoch


def train(
    step: Callable[[State, Any], Any],
    distribute: Callable[[list[Batch]], Iterable[Any]],
    data: Batch,
    options: argparse.Namespace,
    display: Display,
) -> History:
    """Train from the initial weights; the batches do not depend on who takes the steps."""
    state, history = initial_state(), History()
    for epoch in range(options.epochs):
        batches = shuffled(data, options.batch, epoch)
        rows, sums, start = 0, np.zeros(2), time.perf_counter()
        for (_, labels), batch in zip(batches, distribute(batches), strict=True):
            state, metrics = step(state, batch)
            loss, accuracy = (float(metric) for metric in metrics)
            history.losses.append(loss)
            rows += len(labels)
            sums += len(labels) * np.array([loss, accuracy])
            display.step(*sums / rows, rows / (time.perf_counter() - start))
        display.epoch_ends(epoch + 1)
        history.weights.append(jax.tree.map(np.array, state.weights))
    return history


class Display:
    """A progress bar on a terminal, elsewhere one line an epoch.

    Args:
        console: Where to print.
        name: Who trains.
        epochs: Number of epochs.
        steps: Number of steps of an epoch.
    """

    def __init__(self, console: Console, name: str, epochs: int, steps: int) -> None:
        self._console, self._name, self._epochs = console, name, epochs
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(12),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(name, total=epochs * steps, text="compiling")
        self._text = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, loss: float, accuracy: float, rate: float) -> None:
        """Show the epoch's means so far."""
        self._text = f"loss {loss:.4f}  accuracy {accuracy:.4f}  {rate:7,.0f} images/s"
        self._progress.update(self._task, advance=1, text=self._text)

    def epoch_ends(self, epoch: int) -> None:
        """Print the line of an epoch, where no bar shows it."""
        if not self._console.is_terminal:
            self._console.print(f"{self._name:<10}  epoch {epoch}/{self._epochs}  {self._text}")


# --- what is reported --------------------------------------------------------------------------


@dataclass
class Comparison:
    """How far two trainings are apart."""

    losses: list[float]  # difference of the losses, one a step
    weights: list[float]  # largest difference of all weights, one an epoch

    @classmethod
    def of(cls, one: History, other: History) -> Comparison:
        """Compare two trainings of as many steps."""
        trees = zip(one.weights, other.weights, strict=True)
        losses = zip(one.losses, other.losses, strict=True)
        return cls([abs(a - b) for a, b in losses], [largest_difference(a, b) for a, b in trees])


def largest_difference(one: Any, other: Any) -> float:
    """Largest absolute difference of two trees of arrays; not a number where they hold one."""
    differences = jax.tree.map(lambda a, b: np.max(np.abs(a - b)), one, other)
    return float(np.max(jax.tree.leaves(differences)))


def describe_program(step: rx.Function, batch: Batch) -> str:
    """Say how many rows each replica has, and what the compiled program sends."""
    rows = ", ".join(str(len(labels)) for labels in batch.labels.values)
    sent = [one for one in step.collectives(initial_state(), batch) if one.kind == "all-reduce"]
    return f"rows {rows}; {len(sent)} all-reduces of {sum(one.bytes for one in sent):,} bytes"


def draw(replicated: History, one: History, apart: Comparison, name: str, output: Path) -> None:
    """Draw both loss curves, and below them what lies between the two trainings."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - it fixes the backend

    steps = np.arange(1, len(one.losses) + 1)
    epochs = np.linspace(0, len(steps), len(one.weights) + 1)[1:]
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(8, 6.4), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    above.plot(steps, one.losses, color="#f2a541", linewidth=5, label="one device, plain JAX")
    above.plot(steps, replicated.losses, color="#1b4f8f", linewidth=1.4, label=name)
    above.set(yscale="log", ylabel="loss of the global batch")
    above.set_title("Handwritten digits: the same training, twice", loc="left", weight="bold")
    above.legend(frameon=False)
    eps = float(np.finfo(np.float32).eps)
    below.axhline(eps, color="0.5", linewidth=1, linestyle="--", label="float32 rounding of 1")
    below.plot(steps, apart.losses, ".", color="#1b4f8f", markersize=4, label="loss")
    below.plot(epochs, apart.weights, "o-", color="#b3312c", label="weight, the largest")
    below.set(xlabel="step", ylabel="absolute difference")
    below.ticklabel_format(axis="y", scilimits=(0, 0))
    below.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(output, dpi=120)
    plt.close(figure)


# --- the program -------------------------------------------------------------------------------


def positive(text: str) -> int:
    """Read a whole number from 1."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=positive, default=15)
    parser.add_argument("--batch", type=positive, default=128, help="rows of a global batch")
    parser.add_argument(
        "--replicas", type=positive, help="default: every accelerator, else 4 logical CPU devices"
    )
    parser.add_argument("--output", type=Path, default=Path("digits.png"), help="the drawing")
    parser.add_argument(
        "--tolerance", type=float, default=1e-5, help="how far a weight may be from one device"
    )
    return parser.parse_args(arguments)


def make_strategy(replicas: int | None) -> rx.MirroredStrategy:
    """Take the accelerators; where there are none, or too few, logical CPU devices."""
    rx.devices.logical(cpu=replicas or 4)  # before JAX starts; changes nothing on accelerators
    accelerators = rx.devices.local_accelerators()
    if replicas is None:
        return rx.MirroredStrategy()
    if replicas <= len(accelerators):
        return rx.MirroredStrategy(accelerators[:replicas])
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])


def main(arguments: list[str] | None = None) -> int:
    """Train twice, compare, draw; 1 if the trainings differ by more than rounding."""
    options = parsed(arguments)
    console = Console(highlight=False, soft_wrap=True)
    strategy = make_strategy(options.replicas)
    count = strategy.num_replicas_in_sync
    name = "1 replica" if count == 1 else f"{count} replicas"
    data, test_data = train_and_test_data()
    train_step = replicated_step(strategy)

    batches = shuffled(data, options.batch, epoch=0)
    shared = list(strategy.distribute_dataset(batches))
    console.print("worker_devices", *strategy.extended.worker_devices, sep="\n  ")
    console.print(f"first batch: {describe_program(train_step, shared[0])}")
    console.print(f"last batch:  {describe_program(train_step, shared[-1])}")

    with Display(console, name, options.epochs, len(batches)) as display:
        replicated = train(train_step, strategy.distribute_dataset, data, options, display)
    with (
        jax.default_device(strategy.replica_mesh.devices[0]),
        Display(console, "one device", options.epochs, len(batches)) as display,
    ):
        one = train(plain_step, lambda batches: batches, data, options, display)

    accuracy = test_accuracy(strategy, replicated.weights[-1], test_data, options.batch)
    console.print(f"test accuracy: {accuracy:.4f} on {len(test_data.labels)} images")
    apart = Comparison.of(replicated, one)
    draw(replicated, one, apart, name, options.output)
    console.print(f"both losses and the difference are drawn in {options.output}")

    weight, loss = apart.weights[-1], float(np.max(apart.losses))
    console.print(f"after {len(one.losses)} steps, {name} and one device differ by at most")
    console.print(f"  {weight:.1e} in a weight, {loss:.1e} in the loss of a step")
    if not (weight <= options.tolerance and loss <= options.tolerance):
        console.print(f"FAILED: up to {options.tolerance:.0e} is allowed (--tolerance)")
        return 1
    if weight > 0:
        console.print("  not 0: float32 sums round, and replicas add the terms in another order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
