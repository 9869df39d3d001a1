"""Any sequence of operations on a variable leaves what the rules in `rules_model` say."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicax as rx

from .rules_model import Kind, RefusedError, VariableModel

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
TAKE_ALL = {"across.update_assign", "across.update_add"}


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
def step_of(kind: Kind, name: str, *, is_compiled: bool) -> Any:
    """The operation as a step of one operand and one index."""
    strategy, variable = strategy_of(kind.replicas), variable_of(kind)

    def step(x, i):
        call = functools.partial(CALLS[name], strategy, variable)
        return call(x, i) if name.startswith("across.") else strategy.run(call, args=(x, i))

    return rx.function(step) if is_compiled else step


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        name: Which of `CALLS`.
        rows: An operand a replica. Where a common one is asked for, that is the first.
        is_common: Whether all replicas get the first operand.
        index: An element of the variable; replica `i` takes `index + i`, modulo, where operands
            differ.
        is_inside: Whether an operation across replicas stands in an `rx.function`.
    """

    name: str
    rows: tuple[tuple[int, ...], ...]
    is_common: bool
    index: int
    is_inside: bool

    @property
    def is_across(self) -> bool:
        return self.name.startswith("across.")

    def operands(self, kind: Kind) -> list[Any]:
        rows = [np.array(row) for row in self.rows[: kind.replicas]]
        rows = [rows[0]] * len(rows) if self.is_common else rows
        return [np.asarray(row / 2 if kind.dtype == "float32" else row, kind.dtype) for row in rows]

    def indices(self, kind: Kind) -> list[int]:
        return [(self.index + (0 if self.is_common else i)) % 3 for i in range(kind.replicas)]

    def perform(self, kind: Kind, *, is_compiled: bool) -> Any:
        """Carry the operation out on the variable of a kind."""
        step = step_of(kind, self.name, is_compiled=is_compiled)
        x, indices = self.operands(kind), [np.int32(i) for i in self.indices(kind)]
        takes_all = not self.is_common and (self.name in TAKE_ALL or not self.is_across)
        if takes_all or self.name == "across.assign_parts":
            return step(rx.PerReplica(x), rx.PerReplica(indices))
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
    is_common=st.booleans(),
    index=st.integers(0, 2),
    is_inside=st.booleans(),
)


def check_all(results: Any, expected: Any) -> None:
    for got, one in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(got), one, rtol=2e-6, atol=2e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "replicas",
    [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)],
)
def test_any_sequence_follows_the_rules(runner, replicas):
    strategy = strategy_of(replicas)

    @settings(max_examples={1: 3, 2: 14, 3: 8}[replicas], deadline=None)
    @given(st.sampled_from(kinds(replicas)), st.lists(operations, min_size=1, max_size=12))
    def follows(kind, sequence):
        variable = variable_of(kind)
        model = VariableModel(kind, np.array(INITIAL, kind.dtype))
        variable.assign(rx.PerReplica(model.copies) if kind.on_read else model.copies[0])
        for operation in sequence:
            is_compiled = runner.compiled and (operation.is_inside or not operation.is_across)
            perform = functools.partial(operation.perform, kind, is_compiled=is_compiled)
            try:
                expected = model.apply(
                    operation.name,
                    operation.operands(kind),
                    operation.indices(kind),
                    is_common=operation.is_common,
                    is_compiled=is_compiled,
                )
            except RefusedError as refused:
                with pytest.raises(ERRORS[str(refused)]):
                    perform()
            else:
                result = perform()
                if expected is not None:
                    results = strategy.local_results(result)
                    assert len(results) == replicas
                    check_all(results, expected * (replicas // len(expected)))
            check_all(strategy.local_results(variable), model.copies)

    follows()


@pytest.mark.parametrize("kind", [k for k in kinds(3) if k.aggregation != "none"], ids=str)
@given(x=numbers.map(sum), divisor=st.integers(1, 1000))
@settings(max_examples=5, deadline=None)
def test_what_is_assigned_across_replicas_is_read_bit_for_bit(kind, x, divisor):
    variable = variable_of(kind)
    value = x / divisor if kind.dtype == "float32" else x * 1_000_003
    written = np.full(3, value, kind.dtype)
    variable.assign(written)
    np.testing.assert_array_equal(np.asarray(variable), written)
