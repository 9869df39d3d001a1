"""Replicax as the parity kit sees it: what a user would write, nothing repaired."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from kit.registry import default_error_kinds, map_leaves, to_array, to_numpy
from kit.system import PerReplica

import replicax as rx

rx.devices.logical(cpu=4)


def tensor(value: Any, dtype: str | None = None) -> jax.Array:
    """A copy on the device, so that a later change of a NumPy array does not reach it."""
    return jnp.array(to_array(value) if dtype is None else value, dtype)


def argument(value: Any) -> Any:
    """Arrays become tensors; numbers and variables stay as they are."""
    return tensor(value) if isinstance(value, (np.ndarray, np.generic)) else value


def lifted(value: Any) -> Any:
    """An input of the kit as Replicax takes it; per-replica values may be leaves."""
    if isinstance(value, PerReplica):
        return rx.PerReplica([map_leaves(tensor, entry) for entry in value.values])
    if isinstance(value, (dict, list, tuple)):
        return map_leaves(lifted, value)
    return argument(value)


def numpy_tree(tree: Any) -> Any:
    return jax.tree.map(to_numpy, tree)


class Ops:
    """Array functions."""

    def constant(self, value: Any, dtype: str | None = None) -> jax.Array:
        return tensor(value, dtype)

    def cast(self, x: Any, dtype: str) -> jax.Array:
        return jnp.asarray(x, dtype)

    def sum(self, x: Any, axis: int | None = None) -> jax.Array:
        return jnp.sum(x, axis)

    def mean(self, x: Any, axis: int | None = None) -> jax.Array:
        return jnp.mean(x, axis)

    def square(self, x: Any) -> jax.Array:
        return jnp.square(x)

    def sqrt(self, x: Any) -> jax.Array:
        return jnp.sqrt(x)

    def exp(self, x: Any) -> jax.Array:
        return jnp.exp(x)

    def log(self, x: Any) -> jax.Array:
        return jnp.log(x)

    def tanh(self, x: Any) -> jax.Array:
        return jnp.tanh(x)

    def relu(self, x: Any) -> jax.Array:
        return jax.nn.relu(x)

    def minimum(self, x: Any, y: Any) -> jax.Array:
        return jnp.minimum(x, y)

    def where(self, condition: Any, x: Any, y: Any) -> jax.Array:
        return jnp.where(condition, x, y)

    def is_finite(self, x: Any) -> jax.Array:
        return jnp.isfinite(x)

    def all(self, x: Any) -> jax.Array:
        return jnp.all(x)

    def matmul(self, x: Any, y: Any) -> jax.Array:
        return jnp.matmul(x, y, precision="highest")

    def rows(self, x: Any) -> jax.Array:
        return jnp.float32(x.shape[0])


class InputContext:
    """What a dataset function is told."""

    def __init__(self, context: rx.InputContext) -> None:
        self._context = context
        self.num_input_pipelines = context.num_input_pipelines
        self.input_pipeline_id = context.input_pipeline_id
        self.num_replicas_in_sync = context.num_replicas_in_sync

    def per_replica_batch_size(self, global_batch_size: int) -> int:
        return self._context.get_per_replica_batch_size(global_batch_size)


@dataclass(frozen=True)
class ValueContext:
    """What a value function is told."""

    replica_id: int
    num_replicas: int


class Component:
    """One copy of a variable, inside an update function."""

    def __init__(self, variable: rx.Variable) -> None:
        self._variable = variable

    def read(self) -> jax.Array:
        return self._variable.value

    def assign(self, value: Any) -> None:
        self._variable.assign(value)

    def assign_add(self, value: Any) -> None:
        self._variable.assign_add(value)

    def assign_sub(self, value: Any) -> None:
        self._variable.assign_sub(value)


def on_component(fn: Callable[..., Any]) -> Callable[..., Any]:
    """An update function of Replicax out of one of the kit."""

    @functools.wraps(fn)
    def update(variable: rx.Variable, *args: Any) -> Any:
        return fn(Component(variable), *args)

    return update


class Cross:
    """The cross-replica side of a merge call."""

    def __init__(self, strategy: rx.Strategy) -> None:
        self._strategy = strategy
        self.num_replicas = strategy.num_replicas_in_sync

    def reduce(self, op: str, value: Any, axis: int | None = None) -> Any:
        return self._strategy.reduce(op, value, axis=axis)

    def local_results(self, value: Any) -> list[Any]:
        return list(self._strategy.local_results(value))

    def read(self, variable: rx.Variable) -> jax.Array:
        return variable.value

    def assign(self, variable: rx.Variable, value: Any) -> None:
        variable.assign(value)

    def assign_add(self, variable: rx.Variable, value: Any) -> None:
        variable.assign_add(value)

    def update(self, variable: rx.Variable, fn: Callable[..., Any], *args: Any) -> None:
        self._strategy.extended.update(variable, on_component(fn), args=args)


class Replica:
    """One replica's view."""

    def __init__(self) -> None:
        context = rx.get_replica_context()
        assert context is not None
        self._context = context
        self.num_replicas = context.num_replicas_in_sync

    @property
    def replica_id(self) -> Any:
        return self._context.replica_id_in_sync_group

    def all_reduce(self, op: str, value: Any) -> Any:
        return self._context.all_reduce(op, value)

    def all_gather(self, value: Any, axis: int) -> Any:
        return self._context.all_gather(value, axis)

    def merge_call(self, fn: Callable[..., Any], *args: Any) -> Any:
        @functools.wraps(fn)
        def merge(strategy: rx.Strategy, *xs: Any) -> Any:
            return fn(Cross(strategy), *xs)

        return self._context.merge_call(merge, args=args)

    def read(self, variable: rx.Variable) -> jax.Array:
        return variable.value

    def assign(self, variable: rx.Variable, value: Any) -> None:
        variable.assign(value)

    def assign_add(self, variable: rx.Variable, value: Any) -> None:
        variable.assign_add(value)

    def assign_sub(self, variable: rx.Variable, value: Any) -> None:
        variable.assign_sub(value)

    def scatter(self, variable: rx.Variable, op: str, indices: Any, rows: Any) -> None:
        getattr(variable, f"scatter_{op}")(rx.IndexedSlices(rows, indices))

    def value_and_grad(self, fn: Callable[..., Any], *xs: Any) -> tuple[Any, tuple[Any, ...]]:
        return rx.value_and_grad(fn, argnums=tuple(range(len(xs))))(*xs)

    def average_loss(self, per_example: Any, global_batch_size: int | None = None) -> jax.Array:
        return rx.compute_average_loss(per_example, global_batch_size=global_batch_size)

    def apply_gradients(self, optimizer: Optimizer, grads_and_variables: Any) -> None:
        grads, variables = zip(*grads_and_variables, strict=True)
        grads = self._context.all_reduce("sum", grads)
        updates, slots = optimizer.rule.update(grads, optimizer.values())
        optimizer.assign(slots)
        for variable, update in zip(variables, updates, strict=True):
            variable.assign_add(update)


@dataclass(frozen=True)
class Optimizer:
    """A rule of optax and its state: a tree of variables."""

    rule: optax.GradientTransformation
    slots: Any

    def values(self) -> Any:
        return jax.tree.map(lambda slot: slot.value, self.slots)

    def assign(self, values: Any) -> None:
        jax.tree.map(lambda slot, value: slot.assign(value), self.slots, values)


class EagerSystem:
    """A `MirroredStrategy` on logical CPU devices whose `run` is called as it is."""

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas
        self.ops = Ops()
        self._strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])

    def sibling(self, num_replicas: int) -> EagerSystem:
        return type(self)(num_replicas)

    def error_kinds(self, error: BaseException) -> Sequence[str]:
        return default_error_kinds(error)

    # -- variables ---------------------------------------------------------

    def create_variable(
        self,
        initial: Any,
        *,
        synchronization: str = "auto",
        aggregation: str = "none",
        dtype: str | None = None,
    ) -> rx.Variable:
        with self._strategy.scope():
            return rx.Variable(
                initial, dtype=dtype, synchronization=synchronization, aggregation=aggregation
            )

    def locals(self, variable: rx.Variable) -> list[np.ndarray]:
        return [np.asarray(copy) for copy in self._strategy.local_results(variable)]

    def read(self, variable: rx.Variable) -> np.ndarray:
        return np.asarray(variable.value)

    def assign(self, variable: rx.Variable, value: Any) -> None:
        variable.assign(lifted(value))

    def assign_add(self, variable: rx.Variable, value: Any) -> None:
        variable.assign_add(lifted(value))

    def assign_sub(self, variable: rx.Variable, value: Any) -> None:
        variable.assign_sub(lifted(value))

    def assign_slice(self, variable: rx.Variable, start: int, stop: int, value: Any) -> None:
        variable.at[start:stop].set(tensor(value))

    def scatter(self, variable: rx.Variable, op: str, indices: Any, rows: Any) -> None:
        getattr(variable, f"scatter_{op}")(rx.IndexedSlices(tensor(rows), tensor(indices)))

    def update(self, variable: rx.Variable, fn: Callable[..., Any], *args: Any) -> list[Any]:
        results = self._strategy.extended.update(
            variable, on_component(fn), args=lifted(args), group=False
        )
        return [numpy_tree(result) for result in results]

    # -- running and combining ---------------------------------------------

    def run(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        def replica_fn(*xs: Any) -> Any:
            return fn(Replica(), *xs)

        return self._split(self._step(replica_fn)(*lifted(args)))

    def _step(self, replica_fn: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            return self._strategy.run(replica_fn, args=args)

        return step

    def _split(self, value: Any) -> list[Any]:
        """Every replica's result; what does not belong to replicas is common to all."""
        results = [numpy_tree(result) for result in self._strategy.local_results(value)]
        return results if len(results) > 1 else results * self.num_replicas

    def reduce(self, op: str, value: Any, axis: Any = None) -> Any:
        return numpy_tree(self._strategy.reduce(op, lifted(value), axis=axis))

    def gather(self, value: Any, axis: int) -> np.ndarray:
        return to_numpy(self._strategy.gather(lifted(value), axis=axis))

    def local_results(self, value: Any) -> list[Any]:
        return [numpy_tree(result) for result in self._strategy.local_results(lifted(value))]

    def values_from_function(self, fn: Callable[[ValueContext], Any]) -> list[Any]:
        def make(context: rx.ValueContext) -> Any:
            n = context.num_replicas_in_sync
            return fn(ValueContext(context.replica_id_in_sync_group, n))

        return self._split(self._strategy.distribute_values_from_function(make))

    # -- input -------------------------------------------------------------

    def distribute_dataset(
        self, rows: Any, batch_size: int, *, drop_remainder: bool = False, policy: str = "auto"
    ) -> list[list[Any]]:
        # Policies share files or rows out over processes; one process reads everything.
        del policy
        options = rx.InputOptions(global_batch_size=batch_size)
        if drop_remainder:
            length = len(jax.tree.leaves(rows)[0])
            rows = map_leaves(lambda x: x[: length - length % batch_size], rows)
        dataset = self._strategy.distribute_dataset(rows, options)
        return [self._split(batch) for batch in dataset]

    def datasets_from_function(
        self, fn: Callable[[InputContext], Sequence[Any]]
    ) -> list[list[Any]]:
        dataset = self._strategy.distribute_datasets_from_function(
            lambda context: fn(InputContext(context))
        )
        return [self._split(batch) for batch in dataset]

    # -- state -------------------------------------------------------------

    def save(self, variables: Mapping[str, rx.Variable], directory: str) -> None:
        rx.checkpoint.Checkpoint(**variables).save(Path(directory) / "checkpoint")

    def restore(self, variables: Mapping[str, rx.Variable], directory: str) -> None:
        checkpoint = rx.checkpoint.Checkpoint(**variables)
        checkpoint.restore(Path(directory) / "checkpoint").assert_consumed()

    # -- optimizers --------------------------------------------------------

    def create_optimizer(
        self,
        kind: str,
        variables: Sequence[rx.Variable],
        *,
        learning_rate: float,
        momentum: float = 0.9,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
    ) -> Optimizer:
        rules = {
            "sgd": lambda: optax.sgd(learning_rate),
            "momentum": lambda: optax.sgd(learning_rate, momentum),
            "adam": lambda: optax.adam(learning_rate, beta_1, beta_2, epsilon),
        }
        rule = rules[kind]()
        with self._strategy.scope():
            slots = jax.tree.map(rx.Variable, rule.init(tuple(v.value for v in variables)))
        return Optimizer(rule, slots)


class CompiledSystem(EagerSystem):
    """The same with every run inside `rx.function`."""

    def _step(self, replica_fn: Callable[..., Any]) -> Callable[..., Any]:
        return rx.function(super()._step(replica_fn))
