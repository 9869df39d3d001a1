"""The workloads in objects of model libraries: Keras' `fit`, and loops on Keras and NNX.

A model here is a shell: it holds one weight for each leaf and computes what the workload computes.
So all contenders do the same arithmetic, and what differs is what the library adds to a step.

`fit` sees the global batch, and so normalises over it. On the ConvNet that is other arithmetic, so
`fit` is left out there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import optax
from contenders import Make
from flax import nnx
from measuring import Step
from serving import Advance
from workloads import Workload

import replicax as rx

# -- Keras ----------------------------------------------------------------------------------------


class Shell(keras.Model):  # type: ignore[misc] # Keras has no types
    """The leaves of a workload as weights; the output is the loss of each row."""

    def __init__(self, workload: Workload) -> None:
        """Make the weights."""
        super().__init__()
        self._row_losses = workload.row_losses
        leaves, self._structure = jax.tree.flatten(workload.state())
        trained = len(jax.tree.leaves(workload.parameters()))
        self._cells = [
            self.add_weight(
                name=f"leaf{number:03d}",
                shape=leaf.shape,
                initializer=functools.partial(_as_it_is, leaf),
                trainable=number < trained,
                aggregation="none" if number < trained else "mean",
            )
            for number, leaf in enumerate(leaves)
        ]

    def call(self, batch: Any) -> jax.Array:
        """A batch to f32[B]."""
        state = self._structure.unflatten([cell.value for cell in self._cells])
        batch = tuple(batch) if isinstance(batch, list) else batch
        rows, statistics = self._row_losses(*state, batch)
        updated = jax.tree.leaves(statistics)
        if updated:
            for cell, value in zip(self._cells[-len(updated) :], updated, strict=True):
                cell.assign(value)
        return rows


def _as_it_is(leaf: np.ndarray, shape: Any, dtype: Any) -> Any:
    return jax.numpy.asarray(leaf, dtype).reshape(shape)


def _its_output(_: Any, rows: Any) -> Any:
    return rows


def keras_loop(strategy: rx.Strategy, workload: Workload) -> Step:
    """A loop of one's own on a Keras model and its optimizer."""
    with strategy.scope():
        model, optimizer = Shell(workload), keras.optimizers.SGD(workload.rate)
        optimizer.build(model.trainable_variables)

    def replica_step(batch: Any) -> Any:
        ctx = rx.get_replica_context()
        weights = model.trainable_variables
        loss, gradients = rx.value_and_grad(lambda: ctx.global_mean(model(batch)), weights)()
        rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients), weights)
        return loss

    return _on_a_batch(strategy, workload, replica_step)


def _on_a_batch(
    strategy: rx.Strategy, workload: Workload, replica_step: Callable[[Any], Any]
) -> Step:
    @rx.function
    def run(batch: Any) -> Any:
        return strategy.run(replica_step, args=(batch,))

    batch = next(iter(strategy.distribute_dataset([workload.batch()])))
    return lambda: run(batch)


def keras_fit(strategy: rx.Strategy, workload: Workload) -> Advance:
    """`rx.keras.fit`: so many steps are one epoch."""
    with strategy.scope():
        model = _compiled(workload)
    return _in_epochs(workload, functools.partial(rx.keras.fit, model))


def data_parallel_fit(strategy: rx.Strategy, workload: Workload) -> Advance:
    """Keras' own `fit` under its `DataParallel`, on the same devices."""
    devices = [f"cpu:{number}" for number in range(strategy.num_replicas_in_sync)]
    parallel = keras.distribution.DataParallel(devices=devices)
    with parallel.scope():
        model = _compiled(workload)

    def fit(x: Any, y: Any, **options: Any) -> Any:
        with parallel.scope():
            return model.fit(x, y, **options)

    return _in_epochs(workload, fit)


def _compiled(workload: Workload) -> Shell:
    model = Shell(workload)
    model.compile(keras.optimizers.SGD(workload.rate), loss=_its_output)
    return model


def _in_epochs(workload: Workload, fit: Callable[..., Any]) -> Advance:
    batch = workload.batch()
    rows = len(jax.tree.leaves(batch)[0])

    @functools.lru_cache(maxsize=2)
    def repeated(steps: int) -> Any:
        x = jax.tree.map(lambda leaf: np.concatenate([leaf] * steps), batch)
        return (list(x) if isinstance(x, tuple) else x), np.zeros(rows * steps, np.float32)

    def advance(steps: int) -> float:
        history = fit(*repeated(steps), batch_size=rows, shuffle=False, verbose=0)
        return float(history.history["loss"][0])

    return advance


# -- Flax NNX -------------------------------------------------------------------------------------


class Leaves(nnx.Module):
    """The leaves of a workload as variables of a module."""

    def __init__(self, workload: Workload) -> None:
        """Take the initial values."""
        parameters, statistics = workload.state()
        self.parameters = nnx.List([nnx.Param(leaf) for leaf in _arrays(parameters)])
        self.statistics = nnx.List([nnx.BatchStat(leaf) for leaf in _arrays(statistics)])


def _arrays(tree: Any) -> Iterator[jax.Array]:
    return map(jax.numpy.asarray, jax.tree.leaves(tree))


def nnx_loop(strategy: rx.Strategy, workload: Workload) -> Step:
    """A loop of one's own on an NNX module and its optimizer."""
    parameters, statistics = map(jax.tree.structure, workload.state())
    with strategy.scope():
        module = Leaves(workload)
        optimizer = nnx.Optimizer(module, optax.sgd(workload.rate), wrt=nnx.Param)
        rx.nnx.adopt(module, optimizer)

    def replica_step(batch: Any) -> Any:
        ctx = rx.get_replica_context()

        def loss_of(module: Leaves) -> Any:
            rows, updated = workload.row_losses(
                parameters.unflatten([leaf[...] for leaf in module.parameters]),
                statistics.unflatten([leaf[...] for leaf in module.statistics]),
                batch,
            )
            for leaf, value in zip(module.statistics, jax.tree.leaves(updated), strict=True):
                leaf[...] = value
            return ctx.global_mean(rows)

        loss, gradients = nnx.value_and_grad(loss_of)(module)
        optimizer.update(module, ctx.all_reduce("mean", gradients))
        return loss

    return _on_a_batch(strategy, workload, replica_step)


LOOPS: dict[str, Make] = {"Keras loop": keras_loop, "NNX loop": nnx_loop}
FITS: dict[str, Callable[[rx.Strategy, Workload], Advance]] = {"Keras fit": keras_fit}
PEER_FITS = {"Keras DataParallel fit": data_parallel_fit}
"""Not ours; on arrays, it needs one process."""
