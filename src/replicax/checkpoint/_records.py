"""What a checkpoint says about each leaf, and leaves as plain arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.input import DistributedIterator
from replicax.values import PerReplica, Variable, VariableAggregation
from replicax.values._exchange import all_components
from replicax.values._mesh import placed_by_processes
from replicax.values._sharded import ShardedVariable

_NUMBERS = {cls.__name__: cls for cls in (bool, int, float, complex)}


@dataclasses.dataclass(frozen=True)
class Record:
    """One leaf, but for the numbers in its array.

    Attributes:
        dtype: The dtype of an array, or the type of a Python number.
        shape: The shape; None for a Python number. Of copies: that of one copy.
        copies: How many different copies there are, one a replica; None where there is one value.
        key_implementation: How an array of PRNG keys makes random numbers; None for others.
        number: A Python number, in Python's own words.
        position: The place of an iterator in its dataset.
    """

    dtype: str
    shape: tuple[int, ...] | None
    copies: int | None = None
    key_implementation: str | None = None
    number: str | None = None
    position: dict[str, Any] | None = None

    def __str__(self) -> str:
        if self.shape is None:
            return self.dtype
        array = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return array if self.copies is None else f"{self.copies} copies of {array}"

    @property
    def has_data(self) -> bool:
        """Whether there is anything to store beside the record."""
        return self.shape is not None and 0 not in self.shape

    def data_in(
        self, arrays: Mapping[str, np.ndarray[Any, Any]], path: str
    ) -> np.ndarray[Any, Any] | None:
        """The leaf's data among stored arrays; None where all is in the record."""
        if self.shape is None:
            return None
        if self.has_data:
            return arrays[path]
        copies = () if self.copies is None else (self.copies,)
        keys = self.key_implementation
        if keys is None:
            return np.zeros((*copies, *self.shape), jnp.dtype(self.dtype))
        return np.zeros((*copies, *self.shape, *_key_data_shape(keys)), np.uint32)

    def to_json(self) -> dict[str, Any]:
        """The record in terms of JSON, without what does not apply."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """The record that `to_json` wrote."""
        shape = fields.get("shape")
        return cls(**{**fields, "shape": None if shape is None else tuple(shape)})


def record_of(path: str, leaf: Any) -> Record:
    """What to say about a leaf; its data is not touched.

    Raises:
        InvalidArgumentError: It has no common value, and is no variable.
        ContextError: It is being traced.
    """
    if isinstance(leaf, (*_NUMBERS.values(),)) and not isinstance(leaf, np.generic):
        return Record(type(leaf).__name__, None, number=repr(leaf))
    if isinstance(leaf, DistributedIterator):
        return Record("position of an iterator", None, position=leaf.get_state())
    if isinstance(leaf, jax.core.Tracer):
        _refuse_tracer(path)
    if isinstance(leaf, Variable):
        return Record(
            str(leaf.dtype), tuple(leaf.shape), _num_copies(leaf), _key_implementation(leaf)
        )
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        _refuse_values(path, leaf)
    return Record(str(leaf.dtype), leaf.shape, None, _key_implementation(leaf))


def data_of(leaf: Any, record: Record) -> np.ndarray[Any, Any]:
    """The numbers of a leaf, on the host: ``[...]``, or ``[copies, ...]``."""
    if record.copies is not None:
        copies = leaf.per_replica()
        if leaf.strategy is not None:
            copies = all_components(leaf.strategy.replica_mesh, copies)
        return np.stack([_on_host(copy) for copy in copies.values])
    return _on_host(_value_of(leaf))


def fits(saved: Record, wanted: Record) -> bool:
    """Whether a leaf of one record can be restored into a leaf of another."""
    same = (saved.dtype, saved.shape, saved.key_implementation) == (
        wanted.dtype,
        wanted.shape,
        wanted.key_implementation,
    )
    return same and saved.copies in {None, wanted.copies}


def assign(leaf: Any, record: Record, data: np.ndarray[Any, Any] | None) -> None:
    """Set a variable or an iterator to what was saved; cross-replica."""
    if record.position is not None:
        leaf.set_state(record.position)
        return
    assert data is not None  # noqa: S101 # only numbers and positions have none
    if record.copies is None:
        leaf.assign(_from_host(data, record))
    else:
        copies = [_from_host(copy, record) for copy in data]
        strategy = leaf.strategy
        here = range(len(copies)) if strategy is None else strategy.replica_mesh.local_replicas
        leaf.assign(PerReplica([copies[i] for i in here]))


def like(leaf: Any, record: Record, data: np.ndarray[Any, Any] | None) -> Any:
    """A saved value in the form of the leaf that it replaces, at the same place.

    Args:
        leaf: An array or a number; its value does not matter.
        record: What was saved about the value.
        data: The value's numbers; None for a Python number.
    """
    if record.number is not None:
        if record.dtype == "bool":
            return record.number == "True"
        return _NUMBERS[record.dtype](record.number)
    assert data is not None  # noqa: S101 # only numbers have none
    if isinstance(leaf, np.generic):
        return data[()]
    if isinstance(leaf, np.ndarray):
        return data.copy()
    value = _from_host(data, record)
    array = jnp.asarray(value)
    return placed_by_processes(array, leaf.sharding) if leaf.committed else array


def _num_copies(variable: Variable) -> int | None:
    """How many values a variable has that nothing says how to combine; None for a common one."""
    if not _has_own_copies(variable):
        return None
    count = variable.strategy.num_replicas_in_sync if variable.strategy is not None else 1
    return count if count > 1 else None


def _value_of(leaf: Any) -> Any:
    """The array of a leaf; of a variable without a rule for its copies, the first copy."""
    if not isinstance(leaf, Variable):
        return leaf
    return leaf.values[0] if _has_own_copies(leaf) and leaf.strategy is not None else leaf.value


def _has_own_copies(variable: Variable) -> bool:
    """Whether nothing says how the replicas' copies are one value; shares are parts of one."""
    without_rule = variable.is_on_read and variable.aggregation is VariableAggregation.NONE
    return without_rule and not isinstance(variable, ShardedVariable)


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _key_implementation(leaf: Any) -> str | None:
    """The implementation's name; ``str(dtype)`` has a short form of it, which not all have."""
    if not _is_key(leaf):
        return None
    return str(jax.random.key_impl(_value_of(leaf)))


def _key_data_shape(implementation: str) -> tuple[int, ...]:
    return jax.random.key_data(jax.random.key(0, impl=implementation)).shape


def _on_host(array: Any) -> np.ndarray[Any, Any]:
    return np.array(jax.random.key_data(array) if _is_key(array) else array)


def _from_host(data: np.ndarray[Any, Any], record: Record) -> Any:
    if record.key_implementation is None:
        return data
    return jax.random.wrap_key_data(jnp.asarray(data), impl=record.key_implementation)


def _refuse_tracer(path: str) -> NoReturn:
    raise errors.ContextError(
        errors.describe(
            f"`{path}` is being traced by JAX and has no value yet.",
            why="A checkpoint holds numbers.",
            fix="Save and restore outside of `jax.jit`, `rx.function` and the like.",
        )
    )


def _refuse_values(path: str, leaf: Any) -> NoReturn:
    raise errors.InvalidArgumentError(
        errors.describe(
            f"`{path}` is {leaf!r}, which has no common value to save or restore.",
            why="It holds one component a replica, which may differ.",
            fix="Combine the components with `strategy.reduce(op, value, axis=None)`, or keep them "
            "in a variable with `synchronization='on_read'`.",
        )
    )
