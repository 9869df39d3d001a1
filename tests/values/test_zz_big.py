"""Any sequence of operations on a variable leaves what the rules in `rules_model` say."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicax as rx

from .rules_model import Kind, Operation, RefusedError, VariableModel

ERRORS = {
    name: getattr(rx.errors, name)
    for name in ("InvalidArgumentError", "UnimplementedError", "VaryingWriteError")
}
INITIAL = (4, 5, 6)
AGGREGATIONS = ("none", "sum", "mean", "only_first_replica")


# --- the operations ----------------------------------------------------------------------------


def slices(x: Any, i: Any) -> rx.IndexedSlices:
    return rx.IndexedSlices(x[:1], i[None])


def merged(change: Any) -> Any:
    """A replica function whose merge call gives `change` the sum of the operands."""

    def replica_fn(strategy, v, x, _):
        def merge_fn(strategy, x):
            return change(v, strategy.reduce("sum", x, axis=None))

        return rx.get_replica_context().merge_call(merge_fn, args=(x,))

    return replica_fn


def updated(change: Any) -> Any:
    return lambda strategy, v, x, _: strategy.extended.update(v, change, args=(x,))


ASSIGN = lambda v, x: v.assign(x)  # noqa: E731
ADD = lambda v, x: v.assign_add(x)  # noqa: E731

# Each gets a strategy, a variable, an operand and an index. `parts` and `update_...` get the
# operands of all replicas, the others across replicas that of the first.
CALLS = {
    "across.assign": lambda _, v, x, i: v.assign(x),
    "across.assign_number": lambda _, v, x, i: v.assign(3),
    "across.assign_halves": lambda _, v, x, i: v.assign(jnp.asarray(x, jnp.float32)),
    "across.assign_parts": lambda _, v, x, i: v.assign(x),
    "across.assign_add": lambda _, v, x, i: v.assign_add(x),
    "across.assign_sub": lambda _, v, x, i: v.assign_sub(x),
    "across.at_add": lambda _, v, x, i: v.at[i].add(x[0]),
    "across.at_set": lambda _, v, x, i: v.at[i].set(x[0]),
    "across.scatter_add": lambda _, v, x, i: v.scatter_add(slices(x, i)),
    "across.read": lambda _, v, x, i: v.value,
    "across.reduce_sum": lambda strategy, v, x, i: strategy.reduce("sum", v, axis=None),
    "across.reduce_mean": lambda strategy, v, x, i: strategy.reduce("mean", v, axis=None),
    "across.update_assign": updated(ASSIGN),
    "across.update_add": updated(ADD),
    "replica.read": lambda _, v, x, i: v.read_value(),
    "replica.assign": lambda _, v, x, i: v.assign(x),
    "replica.assign_add": lambda _, v, x, i: v.assign_add(x),
    "replica.assign_sub": lambda _, v, x, i: v.assign_sub(x),
    "replica.at_add": lambda _, v, x, i: v.at[i].add(x[0]),
    "replica.at_set": lambda _, v, x, i: v.at[i].set(x[0]),
    "replica.scatter_add": lambda _, v, x, i: v.scatter_add(slices(x, i)),
    "replica.update_add": updated(ADD),
    "replica.merge_assign": merged(ASSIGN),
    "replica.merge_add": merged(ADD),
    "replica.merge_read": merged(lambda v, _: v.value),
}
TAKE_ALL = {"across.assign_parts", "across.update_assign", "across.update_add"}


@functools.cache
def strategy_of(replicas: int) -> rx.Strategy:
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])


@functools.cache
def variable_of(kind: Kind) -> rx.Variable:
    """One variable a kind, so that programs are compiled once for all examples."""
    with strategy_of(kind.replicas).scope():
        return rx.Variable(
            np.array(INITIAL, kind.dtype),
            synchronization="on_read" if kind.on_read else "on_write",
            aggregation=kind.aggregation,
            name=str(kind),
        )


@functools.cache
def step_of(kind: Kind, name: str, is_compiled: bool) -> Any:
    """The operation as a step of one operand and one index."""
    strategy, variable = strategy_of(kind.replicas), variable_of(kind)

    def step(x, i):
        call = functools.partial(CALLS[name], strategy, variable)
        return call(x, i) if name.startswith("across.") else strategy.run(call, args=(x, i))

    return rx.function(step) if is_compiled else step


def perform(model: VariableModel, operation: Operation, is_compiled: bool) -> Any:
    """Carry an operation out on the variable that `model` is a model of."""
    x, indices = model.operands(operation), np.array(model.indices(operation), np.int32)
    name, across = operation.name, operation.name.startswith("across.")
    whole = name == "across.assign_parts" or not (operation.common or across)
    whole = whole or (name in TAKE_ALL and not operation.common)
    step = step_of(model.kind, name, is_compiled)
    if whole:
        return step(rx.PerReplica(x), rx.PerReplica(list(indices)))
    return step(x[0], indices[0])


# --- the properties ----------------------------------------------------------------------------


def kinds(replicas: int) -> list[Kind]:
    return [
        Kind(on_read, aggregation, dtype, replicas)
        for on_read in (False, True)
        for aggregation in AGGREGATIONS
        for dtype in ("float32", "int32")
        if (aggregation, dtype) != ("mean", "int32")
    ]


numbers = st.tuples(*[st.integers(-20, 20)] * 3)
operations = st.builds(
    Operation,
    name=st.sampled_from(sorted(CALLS)),
    rows=st.tuples(numbers, numbers, numbers),
    common=st.booleans(),
    index=st.integers(0, 2),
    inside=st.booleans(),
)


def same(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), expected, rtol=2e-6, atol=2e-5)


def check_copies(strategy: Any, variable: Any, model: VariableModel) -> None:
    for got, copy in zip(strategy.local_results(variable), model.copies, strict=True):
        same(got, copy)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_any_sequence_follows_the_rules(runner, replicas):
    strategy = strategy_of(replicas)

    @settings(max_examples=250, deadline=None)
    @given(st.sampled_from(kinds(replicas)), st.lists(operations, min_size=1, max_size=12))
    def follows(kind, sequence):
        variable = variable_of(kind)
        model = VariableModel(kind, np.array(INITIAL, kind.dtype))
        variable.assign(rx.PerReplica(model.copies) if kind.on_read else model.copies[0])
        for operation in sequence:
            outside = operation.name.startswith("across.") and not operation.inside
            is_compiled = runner.compiled and not outside
            try:
                expected = model.apply(operation, is_compiled=is_compiled)
            except RefusedError as refused:
                with pytest.raises(ERRORS[refused.name]):
                    perform(model, operation, is_compiled)
            else:
                result = perform(model, operation, is_compiled)
                if expected is not None:
                    results = strategy.local_results(result)
                    assert len(results) == replicas
                    for got, one in zip(results, expected * (replicas // len(expected))):
                        same(got, one)
            check_copies(strategy, variable, model)

    follows()


@pytest.mark.parametrize("kind", [k for k in kinds(3) if k.aggregation != "none"], ids=str)
@given(x=numbers.map(sum), divisor=st.integers(1, 1000))
@settings(max_examples=10, deadline=None)
def test_what_is_assigned_across_replicas_is_read_bit_for_bit(kind, x, divisor):
    variable = variable_of(kind)
    value = x / divisor if kind.dtype == "float32" else x * 1_000_003
    written = np.full(3, value, kind.dtype)
    variable.assign(written)
    np.testing.assert_array_equal(np.asarray(variable), written)
