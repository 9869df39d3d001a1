"""Trains the workloads with TensorFlow when it is asked to: one device, or a strategy.

The loop is by hand, the fastest way: `strategy.run` in a `tf.function`, gradients combined by
`batch_reduce_to`, and variables updated without an optimizer. Gradients of the table are sparse
rows, as `tf.gather` gives them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1]))
from serving import Advance, answers, options, serve

Weights = dict[str, Any]
ONE_DEVICE = "TensorFlow, one device"
RowLosses = Callable[[Weights, tuple[Any, ...]], Any]


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Of each entry."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def mlp(p: Weights, batch: tuple[Any, ...]) -> Any:
    """784-512-512-10."""
    x, labels = batch
    for number in range(3):
        x = tf.nn.bias_add(x @ p[f"w{number}"], p[f"b{number}"])
        x = tf.nn.relu(x) if number < 2 else x
    return cross_entropy(x, labels)


def convnet(p: Weights, batch: tuple[Any, ...]) -> Any:
    """Four convolutions with BatchNorm."""
    x, labels = batch
    for i in range(4):
        x = tf.nn.conv2d(x, p[f"conv{i}/kernel"], 1, "SAME")
        x, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            x, p[f"conv{i}/scale"], p[f"conv{i}/shift"], epsilon=1e-3
        )
        for name, value in (("mean", mean), ("variance", variance)):
            p[f"conv{i}/{name}"].assign_sub(0.1 * (p[f"conv{i}/{name}"] - value))
        x = tf.nn.relu(x)
        x = tf.nn.max_pool2d(x, 2, 2, "VALID") if i % 2 else x
    return cross_entropy(tf.reduce_mean(x, (1, 2)) @ p["head/w"] + p["head/b"], labels)


def normed(x: Any, scale: Any) -> Any:
    """Divided by the root of the mean square."""
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-6) * scale


def transformer(p: Weights, batch: tuple[Any, ...]) -> Any:
    """A decoder with tied embeddings, and as many heads as layers."""
    (tokens,) = batch
    length, width = p["places"].shape
    depth = heads = sum(name.endswith("/qkv") for name in p)
    causal = tf.constant(np.where(np.tri(length, dtype=bool), 0, -1e9).astype(np.float32))
    flat = (-1, width)
    x = tf.gather(p["words"], tokens[:, :-1]) + p["places"]
    for i in range(depth):
        own = {key.split("/")[1]: value for key, value in p.items() if key.startswith(f"block{i}/")}
        qkv = tf.reshape(normed(x, own["norm1"]), flat) @ own["qkv"]
        parts = tf.split(tf.reshape(qkv, (-1, length, 3 * width)), 3, -1)
        q, k, v = (
            tf.transpose(tf.reshape(part, (-1, length, heads, width // heads)), (0, 2, 1, 3))
            for part in parts
        )
        scores = tf.matmul(q, k, transpose_b=True) / np.sqrt(width // heads).astype(np.float32)
        mixed = tf.transpose(tf.nn.softmax(scores + causal) @ v, (0, 2, 1, 3))
        x = x + tf.reshape(tf.reshape(mixed, flat) @ own["out"], tf.shape(x))
        hidden = tf.reshape(normed(x, own["norm2"]), flat)
        hidden = tf.nn.gelu(hidden @ own["up"] + own["up_bias"], approximate=True)
        x = x + tf.reshape(hidden @ own["down"] + own["down_bias"], tf.shape(x))
    logits = tf.matmul(tf.reshape(normed(x, p["norm"]), flat), p["words"], transpose_b=True)
    losses = cross_entropy(logits, tf.reshape(tokens[:, 1:], (-1,)))
    return tf.reduce_mean(tf.reshape(losses, (-1, length)), -1)


def layers(p: Weights, batch: tuple[Any, ...]) -> Any:
    """Many small dense layers."""
    hidden, goal = batch
    for i in range(len(p) // 2):
        hidden = hidden + 0.1 * tf.tanh(tf.nn.bias_add(hidden @ p[f"{i}/w"], p[f"{i}/b"]))
    return tf.reduce_mean(tf.square(hidden - goal), -1)


def embedding(p: Weights, batch: tuple[Any, ...]) -> Any:
    """A large table."""
    ids, labels = batch
    return cross_entropy(tf.reduce_mean(tf.gather(p["table"], ids), 1) @ p["w"] + p["b"], labels)


ROW_LOSSES: dict[str, RowLosses] = {
    "mlp": mlp,
    "convnet": convnet,
    "transformer": transformer,
    "layers": layers,
    "embedding": embedding,
}


def trained(strategy: Any, data: dict[str, np.ndarray], row_losses: RowLosses) -> Advance:
    """A compiled step on the rows of this process, which lie where they are used."""
    rate = float(data["rate"])
    batch = tuple(data[name] for name in sorted(data) if name.startswith("batch"))
    rows = len(batch[0])
    weights, statistics = variables(strategy, data)
    trainable = list(weights.values())

    def local(context: Any) -> tuple[Any, ...]:
        count = rows // context.num_replicas_in_sync
        first = context.replica_id_in_sync_group * count
        return tuple(tf.constant(leaf[first : first + count]) for leaf in batch)

    mine = strategy.experimental_distribute_values_from_function(local)

    def apply(strategy: Any, gradients: list[Any]) -> None:
        pairs = list(zip(gradients, trainable, strict=True))
        totals = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
        for variable, total in zip(trainable, totals, strict=True):
            strategy.extended.update(variable, less, args=(total,), group=False)

    def less(variable: Any, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            values = rate * gradient.values
            return variable.scatter_sub(tf.IndexedSlices(values, gradient.indices))
        return variable.assign_sub(rate * gradient)

    def replica_step(*leaves: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(row_losses({**weights, **statistics}, leaves)) / rows
        gradients = tape.gradient(loss, trainable)
        tf.distribute.get_replica_context().merge_call(apply, args=(gradients,))
        return loss

    @tf.function
    def step() -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=mine), axis=None)

    def advance(steps: int) -> float:
        for _ in range(steps):
            loss = step()
        return float(loss)

    return advance


def variables(strategy: Any, data: dict[str, np.ndarray]) -> tuple[Weights, Weights]:
    """Weights, and the statistics of normalised layers, which are averaged when they are read."""
    weights, statistics = {}, {}
    with strategy.scope():
        for name, array in data.items():
            if name.startswith("weights/"):
                weights[name.removeprefix("weights/")] = tf.Variable(array)
        for layer in [name.split("/")[0] for name in weights if name.endswith("/scale")]:
            for name, start in (("mean", tf.zeros), ("variance", tf.ones)):
                statistics[f"{layer}/{name}"] = tf.Variable(
                    start(weights[f"{layer}/scale"].shape),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.MEAN,
                )
    return weights, statistics


def strategies(processes: int) -> dict[str, Callable[[], Any]]:
    """What there is for so many processes."""
    if processes > 1:
        one = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs
        return {"TensorFlow MultiWorkerMirroredStrategy": lambda: one}
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
    tf.config.set_logical_device_configuration(cpu, logical)
    return {
        ONE_DEVICE: lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
        "TensorFlow MirroredStrategy": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    }


def main() -> None:
    """Serve."""
    out = answers()
    chosen = options(__doc__ or "").parse_args()
    threads = max(1, (os.cpu_count() or 1) // chosen.processes)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)  # one of them may wait for the other
    with np.load(chosen.data) as file:
        data = dict(file)
    row_losses = ROW_LOSSES[chosen.workload]
    makers: dict[str, Any] = {
        name: lambda make=make: trained(make(), data, row_losses)
        for name, make in strategies(chosen.processes).items()
    }
    if chosen.workload == "convnet":  # One device normalises over the global batch.
        makers.pop(ONE_DEVICE, None)
    serve(makers, f"TensorFlow {tf.__version__}", out)


if __name__ == "__main__":
    main()
