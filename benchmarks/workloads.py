"""The five workloads of the benchmarks, each as plain functions of arrays.

Nothing here knows of devices or replicas: every contender wraps the same functions, so all of
them do the same arithmetic. `small=True` gives the same programs with fewer numbers, for tests.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Tree = Any

RowLosses = Callable[[Tree, Tree, Tree], tuple[jax.Array, Tree]]
"""From parameters, statistics and a batch to `f32[B]` and new statistics."""

Lookup = Callable[[jax.Array, jax.Array], jax.Array]
"""From a table `f32[V, D]` and ids `i32[...]` to rows `f32[..., D]`."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is trained, by gradient descent on the mean of the rows' losses.

    Attributes:
        title: For tables.
        parameters: Makes the initial parameters, of float32.
        statistics: Makes what is averaged over the replicas and not trained; often empty.
        row_losses: What is computed.
        batch: Makes one global batch.
        rate: The learning rate.
        losses_by: Where the parameter `table` is a table of rows: the same with another lookup.
    """

    title: str
    parameters: Callable[[], Tree]
    row_losses: RowLosses
    batch: Callable[[], Tree]
    rate: float
    statistics: Callable[[], Tree] = dict
    losses_by: Callable[[Lookup], RowLosses] | None = None

    def state(self) -> tuple[Tree, Tree]:
        """Parameters and statistics."""
        return self.parameters(), self.statistics()

    def updated(self, parameters: Tree, gradients: Tree) -> Tree:
        """The parameters after one step of gradient descent."""
        return jax.tree.map(lambda w, g: w - self.rate * g, parameters, gradients)


def _drawn(rng: np.random.Generator, *shape: int, scale: float | None = None) -> np.ndarray:
    """Normal numbers; by default of the size that keeps the variance of a dense layer."""
    scale = 1 / np.sqrt(np.prod(shape[:-1])) if scale is None else scale
    return (scale * rng.normal(size=shape)).astype(np.float32)


def _labels(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.integers(10, size=rows).astype(np.int32)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Of each entry, f32[...]."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -chosen[..., 0]


def mlp(*, small: bool = False) -> Workload:
    """An MLP 784-512-512-10, batch 256."""
    sizes, rows = ((12, 16, 16, 10), 8) if small else ((784, 512, 512, 10), 256)

    def parameters() -> Tree:
        rng = np.random.default_rng(0)
        layers = {}
        for number, (n, m) in enumerate(itertools.pairwise(sizes)):
            layers[f"w{number}"], layers[f"b{number}"] = _drawn(rng, n, m), np.zeros(m, np.float32)
        return layers

    def row_losses(layers: Tree, statistics: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        hidden, labels = batch
        for number in range(3):
            hidden = hidden @ layers[f"w{number}"] + layers[f"b{number}"]
            hidden = jax.nn.relu(hidden) if number < 2 else hidden
        return _cross_entropy(hidden, labels), statistics

    def batch() -> Tree:
        rng = np.random.default_rng(1)
        return _drawn(rng, rows, sizes[0], scale=1.0), _labels(rng, rows)

    title = "MLP " + "-".join(map(str, sizes)) + f", batch {rows}"
    return Workload(title, parameters, row_losses, batch, rate=0.05)


def convnet(*, small: bool = False) -> Workload:
    """Four convolutions with BatchNorm on 32x32x3, batch 128; replicas normalise their own rows."""
    channels, side, rows = ((4, 4, 8, 8), 8, 4) if small else ((32, 32, 64, 64), 32, 128)
    inputs = (3, *channels[:-1])

    def parameters() -> Tree:
        rng = np.random.default_rng(0)
        layers = {
            f"conv{i}": {
                "kernel": _drawn(rng, 3, 3, n, m),
                "scale": np.ones(m, np.float32),
                "shift": np.zeros(m, np.float32),
            }
            for i, (n, m) in enumerate(zip(inputs, channels, strict=True))
        }
        return {**layers, "head": {"w": _drawn(rng, channels[-1], 10), "b": np.zeros(10, "f4")}}

    def statistics() -> Tree:
        return {
            f"conv{i}": {"mean": np.zeros(m, np.float32), "variance": np.ones(m, np.float32)}
            for i, m in enumerate(channels)
        }

    def row_losses(layers: Tree, running: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        x, labels = batch
        updated = {}
        for i in range(4):
            layer, old = layers[f"conv{i}"], running[f"conv{i}"]
            x = lax.conv_general_dilated(
                x, layer["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            x = (x - mean) * lax.rsqrt(variance + 1e-3) * layer["scale"] + layer["shift"]
            x = jax.nn.relu(x)
            updated[f"conv{i}"] = {
                "mean": 0.9 * old["mean"] + 0.1 * lax.stop_gradient(mean),
                "variance": 0.9 * old["variance"] + 0.1 * lax.stop_gradient(variance),
            }
            if i % 2:
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = x.mean((1, 2)) @ layers["head"]["w"] + layers["head"]["b"]
        return _cross_entropy(logits, labels), updated

    def batch() -> Tree:
        rng = np.random.default_rng(1)
        return _drawn(rng, rows, side, side, 3, scale=1.0), _labels(rng, rows)

    title = f"ConvNet {side}x{side}x3, 4 convolutions with BatchNorm, batch {rows}"
    return Workload(title, parameters, row_losses, batch, rate=0.05, statistics=statistics)


def transformer(*, small: bool = False) -> Workload:
    """A decoder of 4 layers, width 256, sequences of 128, batch 16."""
    if small:
        depth, width, heads, length, rows, words = 2, 8, 2, 6, 4, 16
    else:
        depth, width, heads, length, rows, words = 4, 256, 4, 128, 16, 1000

    def parameters() -> Tree:
        rng = np.random.default_rng(0)
        blocks = {
            f"block{i}": {
                "norm1": np.ones(width, np.float32),
                "qkv": _drawn(rng, width, 3 * width),
                "out": _drawn(rng, width, width),
                "norm2": np.ones(width, np.float32),
                "up": _drawn(rng, width, 4 * width),
                "up_bias": np.zeros(4 * width, np.float32),
                "down": _drawn(rng, 4 * width, width),
                "down_bias": np.zeros(width, np.float32),
            }
            for i in range(depth)
        }
        tables = {
            "words": _drawn(rng, words, width, scale=0.02),
            "places": _drawn(rng, length, width, scale=0.02),
        }
        return {**blocks, **tables, "norm": np.ones(width, np.float32)}

    def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
        return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * scale

    def attended(block: Tree, x: jax.Array) -> jax.Array:
        parts = jnp.split(normed(x, block["norm1"]) @ block["qkv"], 3, axis=-1)
        q, k, v = (part.reshape(*x.shape[:2], heads, -1) for part in parts)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // heads)
        scores = jnp.where(np.tri(length, dtype=bool), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        return x + mixed.reshape(x.shape) @ block["out"]

    def row_losses(p: Tree, statistics: Tree, tokens: Tree) -> tuple[jax.Array, Tree]:
        x = p["words"][tokens[:, :-1]] + p["places"]
        for i in range(depth):
            block = p[f"block{i}"]
            x = attended(block, x)
            hidden = jax.nn.gelu(normed(x, block["norm2"]) @ block["up"] + block["up_bias"])
            x = x + hidden @ block["down"] + block["down_bias"]
        logits = normed(x, p["norm"]) @ p["words"].T
        return _cross_entropy(logits, tokens[:, 1:]).mean(-1), statistics

    def batch() -> Tree:
        return np.random.default_rng(1).integers(words, size=(rows, length + 1)).astype(np.int32)

    title = f"Transformer, {depth} layers, width {width}, length {length}, batch {rows}"
    return Workload(title, parameters, row_losses, batch, rate=0.05)


def layers(*, small: bool = False) -> Workload:
    """200 dense layers 32x32: many small gradients."""
    depth, width, rows = (12, 8, 8) if small else (200, 32, 64)

    def parameters() -> Tree:
        rng = np.random.default_rng(0)
        return [
            {"w": _drawn(rng, width, width), "b": np.zeros(width, np.float32)} for _ in range(depth)
        ]

    def row_losses(stack: Tree, statistics: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        hidden, goal = batch
        for layer in stack:
            hidden = hidden + 0.1 * jnp.tanh(hidden @ layer["w"] + layer["b"])
        return jnp.square(hidden - goal).mean(-1), statistics

    def batch() -> Tree:
        rng = np.random.default_rng(1)
        return _drawn(rng, rows, width, scale=1.0), _drawn(rng, rows, width, scale=1.0)

    title = f"{depth} dense layers {width}x{width}, batch {rows}"
    return Workload(title, parameters, row_losses, batch, rate=0.01)


def embedding(*, small: bool = False) -> Workload:
    """A table 200,000 x 64, 8 words a row, batch 1024: one large gradient, mostly zero."""
    words, width, rows = (1000, 64, 8) if small else (200_000, 64, 1024)

    def parameters() -> Tree:
        rng = np.random.default_rng(0)
        return {
            "table": _drawn(rng, words, width, scale=0.1),
            "w": _drawn(rng, width, 10),
            "b": np.zeros(10, np.float32),
        }

    def losses_by(lookup: Lookup) -> RowLosses:
        def row_losses(p: Tree, statistics: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
            ids, labels = batch
            logits = lookup(p["table"], ids).mean(1) @ p["w"] + p["b"]
            return _cross_entropy(logits, labels), statistics

        return row_losses

    def batch() -> Tree:
        rng = np.random.default_rng(1)
        return rng.integers(words, size=(rows, 8)).astype(np.int32), _labels(rng, rows)

    title = f"Embedding {words:,} x {width}, batch {rows}"
    dense = losses_by(lambda table, ids: table[ids])
    return Workload(title, parameters, dense, batch, rate=1.0, losses_by=losses_by)


WORKLOADS: dict[str, Callable[..., Workload]] = {
    "mlp": mlp,
    "convnet": convnet,
    "transformer": transformer,
    "layers": layers,
    "embedding": embedding,
}
"""By the name that the command line uses."""


def save(file: Path, workload: Workload) -> None:
    """Initial weights and the batch for other libraries: `weights/conv0/kernel`, `batch/0`."""
    kept = {"weights": workload.parameters(), "batch": workload.batch()}
    arrays = {
        "/".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(kept)
    }
    np.savez(file, rate=np.float32(workload.rate), **arrays)
