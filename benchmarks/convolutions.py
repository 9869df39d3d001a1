"""Convolutions on CPUs: XLA's as they come, with flags, and written in other ways.

    python benchmarks/convolutions.py
    python benchmarks/convolutions.py --only written im2col --rounds 9
    python benchmarks/convolutions.py --tensorflow "env PYTHONPATH=/there /there/bin/python"

The step is forward, backward and update of the ConvNet of `workloads.py`, without replicas, on all
cores. Each contender is a process of its own, because XLA reads its flags at the start; they take
turns, and a ratio is taken within each round. Losses after the same steps must agree.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RATE = 0.05
STATISTICS_EPSILON = 1e-3
TOLERANCE = 1e-3

# Name -> how convolutions are written, how pooling is, and XLA's flags.
CONTENDERS: dict[str, tuple[str, str, str]] = {
    "written": ("lax", "window", ""),
    "nchw": ("nchw", "window", ""),
    "im2col": ("im2col", "window", ""),
    "shifted": ("shifted", "window", ""),
    "pool": ("lax", "reshape", ""),
    "pool im2col": ("im2col", "reshape", ""),
    "pool shifted": ("shifted", "reshape", ""),
    "onednn": ("lax", "window", "--xla_cpu_use_onednn=true"),
    "onednn calls": ("lax", "window", "--xla_cpu_experimental_onednn_custom_call=true"),
    "fast math": ("lax", "window", "--xla_cpu_enable_fast_math=true"),
    "no fusion emitters": ("lax", "window", "--xla_cpu_use_fusion_emitters=false"),
    "one thread a convolution": ("lax", "window", "--xla_cpu_multi_thread_eigen=false"),
    "in order": ("lax", "window", "--xla_cpu_enable_concurrency_optimized_scheduler=false"),
    "wide vectors": ("lax", "window", "--xla_cpu_prefer_vector_width=512"),
    "pool im2col onednn": (
        "im2col",
        "reshape",
        "--xla_cpu_experimental_onednn_custom_call=true",
    ),
}


# -- what runs in a child --------------------------------------------------------------------------


def convolution(way: str) -> Callable[[Any, Any], Any]:
    """A 3x3 convolution that keeps the size: `f32[B, H, W, N]`, `f32[3, 3, N, M]`."""
    import jax.numpy as jnp  # noqa: PLC0415 - TensorFlow's child needs none of it
    from jax import lax  # noqa: PLC0415

    def plain(x: Any, kernel: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)

    def channels_first(x: Any, kernel: Any) -> Any:
        numbers = ("NCHW", "OIHW", "NCHW")
        x, kernel = x.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1)
        y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        return y.transpose(0, 2, 3, 1)

    def windows(x: Any) -> list[Any]:
        height, width = x.shape[1:3]
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]

    def im2col(x: Any, kernel: Any) -> Any:
        columns = jnp.concatenate(windows(x), axis=-1)
        return columns @ kernel.reshape(-1, kernel.shape[-1])

    def shifted(x: Any, kernel: Any) -> Any:
        parts = zip(windows(x), kernel.reshape(9, *kernel.shape[2:]), strict=True)
        return functools.reduce(jnp.add, (part @ weights for part, weights in parts))

    return {"lax": plain, "nchw": channels_first, "im2col": im2col, "shifted": shifted}[way]


def pooling(way: str) -> Callable[[Any], Any]:
    """The largest of 2x2: `f32[B, H, W, N]` to `f32[B, H/2, W/2, N]`."""
    import jax.numpy as jnp  # noqa: PLC0415
    from jax import lax  # noqa: PLC0415

    def window(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def reshape(x: Any) -> Any:
        rows, height, width, channels = x.shape
        return x.reshape(rows, height // 2, 2, width // 2, 2, channels).max((2, 4))

    return {"window": window, "reshape": reshape}[way]


def jax_step(conv_way: str, pool_way: str, parameters: Any, batch: Any) -> Callable[[], float]:
    """One training step; returns the loss."""
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    conv, pool = convolution(conv_way), pooling(pool_way)

    def loss_fn(layers: Any, batch: Any) -> Any:
        x, labels = batch
        for i in range(4):
            layer = layers[f"conv{i}"]
            x = conv(x, layer["kernel"])
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            scale = jax.lax.rsqrt(variance + STATISTICS_EPSILON) * layer["scale"]
            x = jax.nn.relu((x - mean) * scale + layer["shift"])
            x = pool(x) if i % 2 else x
        logits = x.mean((1, 2)) @ layers["head"]["w"] + layers["head"]["b"]
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)
        return -chosen.mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(layers: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_fn)(layers, batch)
        return jax.tree.map(lambda w, g: w - RATE * g, layers, gradients), loss

    state = [jax.device_put(parameters)]
    batch = jax.device_put(batch)

    def one() -> float:
        state[0], loss = step(state[0], batch)
        return float(loss)

    return one


def tensorflow_step(parameters: Any, batch: Any) -> Callable[[], float]:
    """The same in TensorFlow."""
    import tensorflow as tf  # noqa: PLC0415

    layers = {k: {n: tf.Variable(x) for n, x in v.items()} for k, v in parameters.items()}
    x0, labels = (tf.constant(x) for x in batch)
    flat = tf.nest.flatten(layers)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            x = x0
            for i in range(4):
                layer = layers[f"conv{i}"]
                x = tf.nn.conv2d(x, layer["kernel"], 1, "SAME")
                mean, variance = tf.nn.moments(x, (0, 1, 2))
                x = tf.nn.batch_normalization(
                    x, mean, variance, layer["shift"], layer["scale"], STATISTICS_EPSILON
                )
                x = tf.nn.relu(x)
                x = tf.nn.max_pool2d(x, 2, 2, "VALID") if i % 2 else x
            logits = tf.reduce_mean(x, (1, 2)) @ layers["head"]["w"] + layers["head"]["b"]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip(flat, tape.gradient(loss, flat), strict=True):
            variable.assign_sub(RATE * gradient)
        return loss

    return lambda: float(step())


def serve(name: str, rows: int) -> None:
    """Take so many steps as the parent asks for, and tell the seconds of a step and the loss."""
    sys.path.insert(0, str(Path(__file__).parent))
    import workloads  # noqa: PLC0415

    workload = workloads.convnet()
    parameters, batch = workload.parameters(), workload.batch()
    batch = tuple(x[:rows] for x in batch)
    if name == "tensorflow":
        step = tensorflow_step(parameters, batch)
    else:
        step = jax_step(*CONTENDERS[name][:2], parameters, batch)
    for line in sys.stdin:
        count, loss = int(line), 0.0
        began, worked = time.perf_counter(), time.process_time()
        for _ in range(count):
            loss = step()
        told = {
            "seconds": (time.perf_counter() - began) / count,
            "cpu": (time.process_time() - worked) / count,
            "loss": loss,
        }
        print(json.dumps(told), flush=True)


# -- the parent ------------------------------------------------------------------------------------


class Child:
    """A contender in a process of its own."""

    def __init__(self, name: str, python: Sequence[str], rows: int, flags: str = "") -> None:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flags}".strip()
        self.name = name
        self._process: Any = subprocess.Popen(  # noqa: S603 - ourselves
            [*python, __file__, "--child", name, "--batch", str(rows)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def steps(self, count: int) -> dict[str, float] | None:
        """Take steps; None if the process has ended, as XLA does on flags that it does not know."""
        try:
            print(count, file=self._process.stdin, flush=True)
            found: dict[str, float] = json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            return None
        return found

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


Told = list[dict[str, float]]


def compared(children: list[Child], rounds: int, steps: int) -> dict[str, Told]:
    """What each contender that runs tells, by round; the losses must agree."""
    known: dict[str, Told] = {}
    first: float | None = None
    for child in children:
        warm = child.steps(3)
        if warm is None:
            print(f"{child.name}: does not run here", flush=True)
            continue
        first = warm["loss"] if first is None else first
        if abs(warm["loss"] - first) > TOLERANCE:
            print(f"{child.name}: another loss, {warm['loss']:.5f} instead of {first:.5f}")
        known[child.name] = []
    for _ in range(rounds):
        for child in children:
            told = child.steps(steps) if child.name in known else None
            if told is not None:
                known[child.name].append(told)
    return known


def ratio(mine: Told, base: Told, what: str) -> str:
    """The median of the ratios within a round, and their range."""
    found = [a[what] / b[what] for a, b in zip(mine, base, strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison, or one contender."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), help="these alone")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="of a round")
    parser.add_argument("--batch", type=int, default=128, help="rows, up to 128")
    parser.add_argument("--tensorflow", metavar="COMMAND", help="a Python that has TensorFlow")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        serve(options.child, options.batch)
        return
    names = options.only or list(CONTENDERS)
    names = ["written", *(name for name in names if name != "written")]
    rows = options.batch
    children = [Child(name, [sys.executable], rows, CONTENDERS[name][2]) for name in names]
    if options.tensorflow:
        children.append(Child("tensorflow", shlex.split(options.tensorflow), rows))
    try:
        found = compared(children, options.rounds, options.steps)
    finally:
        for child in children:
            child.end()
    print(f"{'contender':26}{'least ms':>9}{'CPU ms':>8}   time beside written    CPU time")
    for name, told in found.items():
        least = 1e3 * min(each["seconds"] for each in told)
        worked = 1e3 * min(each["cpu"] for each in told)
        ratios = [ratio(told, found["written"], what) for what in ("seconds", "cpu")]
        print(f"{name:26}{least:9.1f}{worked:8.1f}   {ratios[0]:23}{ratios[1]}")


if __name__ == "__main__":
    main()
