"""One small model, trained by a plain JAX loop on one device and by Replicax in every way it has.

What a replica computes by itself is jitted: the eager runner would otherwise compile each single
operation once a device and shape, which takes most of a test's time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, cycle, islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

STEPS = 20
FEATURES = 3
OPTIMIZERS: dict[str, optax.GradientTransformation] = {
    "sgd": optax.sgd(0.005),
    "momentum": optax.sgd(0.001, momentum=0.9),
    "adam": optax.adam(0.01),
}


@functools.cache
def mirrored(n: int) -> rx.MirroredStrategy:
    """A strategy of `n` replicas, the same one for all tests: steps on it are reused."""
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(n)])


# --- the model -------------------------------------------------------------------------------


def initial_params(features: int = FEATURES) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> jax.Array:
        return jnp.asarray(rng.uniform(0.2, 0.8, shape) * rng.choice([-1, 1], shape), jnp.float32)

    return {"w1": weights(features, 4), "w2": weights(4, 2)}


def rows(count: int, features: int = FEATURES, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Examples whose targets stay far from what 20 small steps can reach.

    So no gradient comes near zero, where Adam would divide rounding errors by themselves.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(1.0, 0.5, (count, features)).astype(np.float32)
    y = rng.normal([2.0, -2.0], 0.25, (count, 2)).astype(np.float32)
    return x, y


@jax.jit
def predict(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


@jax.jit
def per_row_loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum((predict(params, x) - y) ** 2, axis=-1)


@functools.cache
def updater(optimizer: str) -> Callable[..., Any]:
    """`params, opt_state = update(params, opt_state, gradients)`."""

    @jax.jit
    def update(params: Any, opt_state: Any, gradients: Any) -> Any:
        changes, opt_state = OPTIMIZERS[optimizer].update(gradients, opt_state, params)
        return optax.apply_updates(params, changes), opt_state

    return update


def initial_state(optimizer: str, features: int = FEATURES) -> Any:
    params = initial_params(features)
    return params, OPTIMIZERS[optimizer].init(params)


# --- one device, no replicax -------------------------------------------------------------------


@functools.cache
def one_device_step(optimizer: str) -> Callable[..., Any]:
    @jax.jit
    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        loss, gradients = jax.value_and_grad(lambda p: jnp.mean(per_row_loss(p, *batch)))(params)
        return updater(optimizer)(params, opt_state, gradients), loss

    return step


def train_on_one_device(optimizer: str, batches: Iterable[Any], features: int = FEATURES) -> Any:
    """Final weights and the loss of each step."""
    state, losses = initial_state(optimizer, features), []
    for batch in batches:
        state, loss = one_device_step(optimizer)(state, batch)
        losses.append(float(loss))
    return jax.device_get(state[0]), losses


# --- replicas --------------------------------------------------------------------------------


def loss_and_gradient(params: Any, batch: Any) -> Any:
    """Of the global batch; in replica context."""
    ctx = rx.get_replica_context()
    loss, gradients = jax.value_and_grad(lambda p: ctx.global_mean(per_row_loss(p, *batch)))(params)
    return loss, ctx.all_reduce("mean", gradients)


class Functional:
    """State goes through the step by hand."""

    def __init__(
        self,
        optimizer: str,
        strategy: rx.Strategy,
        *,
        compiled: bool,
        donate: bool = False,
        features: int = FEATURES,
    ) -> None:
        def replica_step(state: Any, batch: Any) -> Any:
            params, opt_state = state
            loss, gradients = loss_and_gradient(params, batch)
            return updater(optimizer)(params, opt_state, gradients), loss

        def step(state: Any, batch: Any) -> Any:
            return strategy.run(replica_step, args=(state, batch))

        self.optimizer, self.features, self.strategy = optimizer, features, strategy
        self.step = rx.function(step, donate="state" if donate else ()) if compiled else step

    def train(self, batches: Iterable[Any]) -> Any:
        state, losses = initial_state(self.optimizer, self.features), []
        for batch in self.strategy.distribute_dataset(batches):
            state, loss = self.step(state, batch)
            losses.append(float(loss))
        return jax.device_get(state[0]), losses


class InPlace:
    """Weights and the optimizer's state are variables."""

    def __init__(
        self, optimizer: str, strategy: rx.Strategy, *, compiled: bool, features: int = FEATURES
    ) -> None:
        self.optimizer, self.features, self.strategy = optimizer, features, strategy
        with strategy.scope():
            self.variables = jax.tree.map(rx.Variable, initial_state(optimizer, features))

        def replica_step(batch: Any) -> jax.Array:
            params, opt_state = read(self.variables)
            loss, gradients = loss_and_gradient(params, batch)
            assign(self.variables, updater(optimizer)(params, opt_state, gradients))
            return loss

        def step(batch: Any) -> jax.Array:
            return strategy.reduce("mean", strategy.run(replica_step, args=(batch,)), axis=None)

        self.step = rx.function(step) if compiled else step

    def train(self, batches: Iterable[Any]) -> Any:
        assign(self.variables, initial_state(self.optimizer, self.features))
        losses = [float(self.step(b)) for b in self.strategy.distribute_dataset(batches)]
        return jax.tree.map(np.asarray, self.variables[0]), losses


def read(variables: Any) -> Any:
    return jax.tree.map(lambda variable: variable.value, variables)


def assign(variables: Any, values: Any) -> None:
    jax.tree.map(lambda variable, value: variable.assign(value), variables, values)


# --- batches ---------------------------------------------------------------------------------


def cut(data: Any, size: int) -> list[Any]:
    """Global batches of a dataset; the last may be shorter."""
    count = len(data[0])
    return [tuple(part[i : i + size] for part in data) for i in range(0, count, size)]


def cut_sizes(sizes: Sequence[int], features: int = FEATURES) -> list[Any]:
    """Global batches of these sizes."""
    data = rows(sum(sizes), features)
    ends = np.cumsum(sizes)
    return [
        tuple(part[end - size : end] for part in data)
        for end, size in zip(ends, sizes, strict=True)
    ]


def epochs(batches: Sequence[Any], steps: int = STEPS) -> list[Any]:
    """`steps` batches, from as many epochs as that takes."""
    return list(islice(cycle(batches), steps))


# --- comparing -------------------------------------------------------------------------------


def largest_difference(actual: Any, expected: Any) -> float:
    """Over all leaves; the trees must have one structure, and the leaves equal shapes."""
    gaps = jax.tree.map(_gap, actual, expected)
    return max(jax.tree.leaves(gaps), default=0.0)


def _gap(actual: Any, expected: Any) -> float:
    a, b = np.asarray(actual), np.asarray(expected)
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    assert np.isfinite(a).all()
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0))


def leaves_of(trees: Iterable[Any]) -> Iterator[Any]:
    return chain.from_iterable(jax.tree.leaves(tree) for tree in trees)
