"""What a step on objects of model libraries costs in Python, beside the same step by hand.

    make bench-parts                  # or: python benchmarks/models.py --json figures

Needs `pip install 'replicax[flax,keras,examples]'`. The contenders of a table take turns in one
process, on two logical CPU devices, with the same arithmetic; their losses are compared first.

In the first tables one contender uses a model and its optimizer in place, as a loop of one's own
does. The other is the fastest that we know by hand: the leaves of both as one donated list, put
into a model or module inside of `jit(shard_map)`, and never handed back. The last table sets whole
epochs of `rx.keras.fit` beside Keras' own `fit` under its `DataParallel`, which takes only batches
that the devices can share evenly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from measuring import (
    REPLICAS,
    Comparison,
    Report,
    Step,
    check_losses,
    compare,
    cpu_strategy,
    take_turns,
)

import replicax as rx

SIZES = (4, 24, 50)
"""Parameters of a model; each has a slot in the optimizer."""

MOST = {"rx.nnx": 1.5, "Keras objects": 1.3}
MANY = 100
"""From so many leaves on the ratio has a limit."""

ROWS = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
EPOCH_STEPS = 64


# -- by hand --------------------------------------------------------------------------------------


def packed_mean(leaves: list[jax.Array]) -> list[jax.Array]:
    """The mean over the replicas, in one collective."""
    total = jax.lax.psum(jnp.concatenate([leaf.ravel() for leaf in leaves]), "replica") / REPLICAS
    parts = jnp.split(total, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]


def by_hand(
    strategy: rx.MirroredStrategy, leaves: list[Any], step: Callable[[list[Any], Any], Any]
) -> tuple[Step, int]:
    """A donated `jit(shard_map)` of `leaves, loss = step(leaves, rows)`, and how many leaves."""
    mesh = strategy.replica_mesh
    split, whole = PartitionSpec("replica"), PartitionSpec()
    mapped = jax.shard_map(
        step, mesh=mesh.mesh, in_specs=(whole, split), out_specs=(whole, whole), check_vma=False
    )
    run = jax.jit(mapped, donate_argnums=0)
    leaves = jax.device_put(leaves, mesh.mirrored)
    batch = jax.device_put(ROWS, NamedSharding(mesh.mesh, split))
    count = len(leaves)

    def next_step() -> jax.Array:
        nonlocal leaves
        leaves, loss = run(leaves, batch)
        return loss

    return next_step, count


def in_place(strategy: rx.MirroredStrategy, replica_step: Callable[[Any], Any]) -> Step:
    """An `rx.function` of `loss = replica_step(rows)`."""

    @rx.function
    def step(batch: Any) -> Any:
        return strategy.run(replica_step, args=(batch,))

    batch = next(iter(strategy.distribute_dataset([ROWS])))
    return lambda: step(batch)


# -- Flax NNX -------------------------------------------------------------------------------------


class Gains(nnx.Module):
    """Many small parameters: little arithmetic, much bookkeeping."""

    def __init__(self, count: int) -> None:
        """Start from ones."""
        self.gains = nnx.List([nnx.Param(jnp.ones(8)) for _ in range(count)])

    def __call__(self, x: jax.Array) -> jax.Array:
        """f32[B, 8] to f32[B]."""
        return jnp.mean(x * sum(gain[...] for gain in self.gains) / len(self.gains), axis=-1)


def module_and_optimizer(count: int) -> tuple[Gains, nnx.Optimizer[Gains]]:
    """A module and its optimizer."""
    module = Gains(count)
    return module, nnx.Optimizer(module, optax.sgd(1e-3, momentum=0.9), wrt=nnx.Param)


def loss_of(module: Gains, x: jax.Array) -> jax.Array:
    """f32[], of one replica's rows."""
    return jnp.mean((module(x) - 2.0) ** 2)


def nnx_in_place(strategy: rx.MirroredStrategy, count: int) -> Step:
    """The module and its optimizer used from outside of the step."""
    with strategy.scope():
        module, optimizer = rx.nnx.adopt(*module_and_optimizer(count))

    def replica_step(x: jax.Array) -> jax.Array:
        ctx = rx.get_replica_context()
        loss, gradients = nnx.value_and_grad(loss_of)(module, x)
        optimizer.update(module, ctx.all_reduce("mean", gradients))
        return ctx.all_reduce("mean", loss)

    return in_place(strategy, replica_step)


def nnx_by_hand(strategy: rx.MirroredStrategy, count: int) -> tuple[Step, int]:
    """The same on the leaves."""
    structure, state = nnx.split(module_and_optimizer(count))
    leaves, form = jax.tree.flatten(state)

    def replica_step(leaves: list[jax.Array], x: jax.Array) -> Any:
        module, optimizer = nnx.merge(structure, form.unflatten(leaves))
        loss, gradients = nnx.value_and_grad(loss_of)(module, x)
        flat, kind = jax.tree.flatten(gradients)
        optimizer.update(module, kind.unflatten(packed_mean(flat)))
        return jax.tree.leaves(nnx.state((module, optimizer))), jax.lax.pmean(loss, "replica")

    return by_hand(strategy, leaves, replica_step)


# -- Keras in a loop of one's own -----------------------------------------------------------------


class GainLayer(keras.layers.Layer):  # type: ignore[misc] # Keras has no types
    """The same as a Keras layer."""

    def __init__(self, count: int) -> None:
        """Start from ones."""
        super().__init__()
        self.gains = [self.add_weight(shape=(8,), initializer="ones") for _ in range(count)]

    def call(self, x: jax.Array) -> jax.Array:
        """f32[B, 8] to f32[B]."""
        return jnp.mean(x * sum(gain.value for gain in self.gains) / len(self.gains), axis=-1)


def model_and_optimizer(count: int) -> tuple[Any, Any]:
    """A layer and its optimizer, built."""
    model, optimizer = GainLayer(count), keras.optimizers.SGD(1e-3, momentum=0.9)
    model(ROWS)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def keras_in_place(strategy: rx.MirroredStrategy, count: int) -> Step:
    """The model and its optimizer used from outside of the step."""
    with strategy.scope():
        model, optimizer = model_and_optimizer(count)

    def replica_step(x: jax.Array) -> jax.Array:
        ctx = rx.get_replica_context()
        variables = model.trainable_variables
        loss, gradients = rx.value_and_grad(lambda: jnp.mean((model(x) - 2.0) ** 2), variables)()
        rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients), variables)
        return ctx.all_reduce("mean", loss)

    return in_place(strategy, replica_step)


def keras_by_hand(strategy: rx.MirroredStrategy, count: int) -> tuple[Step, int]:
    """The same on the leaves, by the stateless methods of Keras."""
    model, optimizer = model_and_optimizer(count)
    leaves = [variable.value for variable in (*model.trainable_variables, *optimizer.variables)]

    def replica_step(leaves: list[jax.Array], x: jax.Array) -> Any:
        weights, state = leaves[:count], leaves[count:]

        def loss_fn(weights: list[jax.Array]) -> jax.Array:
            return jnp.mean((model.stateless_call(weights, [], x)[0] - 2.0) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(weights)
        weights, state = optimizer.stateless_apply(state, packed_mean(gradients), weights)
        return [*weights, *state], jax.lax.pmean(loss, "replica")

    return by_hand(strategy, leaves, replica_step)


def steps_beside(strategy: rx.MirroredStrategy, rounds: int) -> Iterator[tuple[str, list[Any]]]:
    """CPU time of the calling thread a step, without the wait for the devices."""
    libraries: dict[str, tuple[Any, Any]] = {
        "rx.nnx": (nnx_in_place, nnx_by_hand),
        "Keras objects": (keras_in_place, keras_by_hand),
    }
    for library, (ours, hand) in libraries.items():
        rows: list[Comparison] = []
        for count in SIZES:
            theirs, leaves = hand(strategy, count)
            steps = {f"{library}, {leaves} leaves": ours(strategy, count), "by hand": theirs}
            check_losses(steps)
            seconds = take_turns(steps, rounds=rounds, bursts=8, clock=time.thread_time, wait=False)
            limit = MOST[library] if leaves >= MANY else None
            rows.append(compare(seconds, *steps, "us", max_ratio=limit))
        yield f"CPU time of the calling thread a step, {library}", rows


# -- Keras' fit -----------------------------------------------------------------------------------


def network() -> Any:
    """Four dense layers with Adam: 26 weights and slots, and an accuracy."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(32, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def fits(strategy: rx.MirroredStrategy) -> dict[str, Callable[[], float]]:
    """Contenders that train for an epoch and return its loss."""
    rng = np.random.default_rng(1)
    rows = 32 * EPOCH_STEPS
    x = rng.normal(size=(rows, 32)).astype(np.float32)
    y = rng.integers(0, 10, rows).astype(np.int32)
    given: dict[str, Any] = {"shuffle": False, "verbose": 0}
    with strategy.scope():
        ours, own = network(), network()
        dataset = strategy.distribute_dataset((x, y), rx.InputOptions(global_batch_size=32))
    devices = [f"cpu:{i}" for i in range(REPLICAS)]
    parallel = keras.distribution.DataParallel(devices=devices)
    with parallel.scope():
        stock = network()

    def by_keras() -> float:
        with parallel.scope():
            return loss(stock.fit(x, y, batch_size=32, **given))

    def on_dataset() -> float:
        with strategy.scope():
            return loss(own.fit(dataset, **given))

    def loss(history: Any) -> float:
        return float(history.history["loss"][0])

    return {
        "rx.keras.fit": lambda: loss(rx.keras.fit(ours, x, y, batch_size=32, **given)),
        "fit, distributed dataset": on_dataset,
        "fit, DataParallel": by_keras,
    }


def epochs_beside(strategy: rx.MirroredStrategy, rounds: int) -> dict[str, list[Comparison]]:
    """CPU time of the process, and time on the clock, of a step in an epoch of `EPOCH_STEPS`."""
    contenders = fits(strategy)
    for _ in range(2):
        losses = {name: fit() for name, fit in contenders.items()}
    if max(losses.values()) - min(losses.values()) > 1e-5:
        raise SystemExit(f"The losses after 2 epochs differ: {losses}")
    clocks = {"CPU time of the process": time.process_time, "Wall time": time.perf_counter}
    seconds = {title: {name: [] for name in contenders} for title in clocks}
    names = list(contenders)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            before = {title: clock() for title, clock in clocks.items()}
            contenders[name]()
            for title, clock in clocks.items():
                seconds[title][name].append((clock() - before[title]) / EPOCH_STEPS)
    stock = names.pop()
    return {
        f"{title} a step of fit, an epoch of {EPOCH_STEPS} steps": [
            compare(seconds[title], name, stock, "us", max_ratio=1.0) for name in names
        ]
        for title in clocks
    }


def main() -> None:
    """Measure, print, and write figures where that was asked for."""
    report = Report("models", (__doc__ or "").splitlines()[0])
    strategy = cpu_strategy()
    for title, rows in steps_beside(strategy, report.rounds):
        report.add(title, rows)
    for title, rows in epochs_beside(strategy, report.rounds).items():
        report.add(title, rows)
    load = os.getloadavg()[0]
    report.console.print(f"Load average {load:.1f} on {os.cpu_count()} cores.")
    report.write()


if __name__ == "__main__":
    main()
