"""A variable whose array lies in an `nnx.Variable`."""

from __future__ import annotations

import collections
import enum
import operator
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.nnx._compat import nnx, set_value, value_of
from replicax.values import MirroredVariable, VariableAggregation
from replicax.values._cells import Cell
from replicax.values._workers import common_start


class Rule(enum.Enum):
    """What a write on each replica means, by the type of the `nnx.Variable`."""

    MIRRORED = "must be equal on all replicas: parameters, the state of optimizers, counts"
    MEAN = "the mean over the replicas: statistics of batches"
    SUM_OF_CHANGES = "what all replicas added: metrics"
    KEY = "each replica reads a key of its own, and none writes it: keys"


def rule_of(part: Any) -> Rule:
    """The rule of an `nnx.Variable`."""
    if isinstance(part, nnx.BatchStat):
        return Rule.MEAN
    if isinstance(part, nnx.metrics.MetricState):
        return Rule.SUM_OF_CHANGES
    return Rule.KEY if isinstance(part, nnx.RngKey) else Rule.MIRRORED


class ModelVariable(MirroredVariable):
    """A mirrored variable whose array lies in an `nnx.Variable`.

    The `nnx.Variable` holds the array, so that modules can be read and written between steps as
    ever; what the user writes there is placed on the replicas at the next step.

    Args:
        part: The `nnx.Variable`.
        name: Its place in the module, for messages.
        owner: The module or optimizer that it is a part of.
    """

    _lies_elsewhere: ClassVar[bool] = True
    _last: jax.Array  # what the `nnx.Variable` held when it was last placed

    def __init__(self, part: Any, name: str, owner: Any) -> None:
        value = value_of(part)
        if not isinstance(value, jax.Array) and not hasattr(value, "dtype"):
            raise errors.UnimplementedError(
                errors.describe(
                    f"rx.nnx.adopt: `{name}` is a {type(part).__name__} that holds {value!r}.",
                    why="A part that steps share between replicas is one array.",
                    fix="Hold one array in each nnx.Variable.",
                )
            )
        super().__init__(
            value,
            trainable=isinstance(part, nnx.Param),
            name=name,
            aggregation=VariableAggregation.NONE,
        )
        placed = self._cell.arrays[0]  # type: ignore[index] # the cell is new
        self.part, self.rule, self._owner = part, rule_of(part), owner
        self._cell.arrays = [None]
        self._value = placed
        BY_PART[id(part)] = self

    # Of what the user wrote nothing is known before a step needs it.
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that steps know."""
        return self._last.shape

    @property
    def dtype(self) -> Any:
        """The dtype that steps know."""
        return self._last.dtype

    @property
    def _aval(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self._last.shape, self._last.dtype)

    @property
    def _value(self) -> jax.Array:
        return self._for_program()

    @_value.setter
    def _value(self, array: jax.Array) -> None:
        self._from_program(array)

    def _for_program(self) -> jax.Array:
        array: jax.Array = self.part._raw_value
        return array if array is self._last else self._taken(array)

    _for_reading = _for_program

    def _from_program(self, state: jax.Array) -> None:
        set_value(self.part, state)
        self._last = state

    def _taken(self, array: Any) -> jax.Array:
        """Place what the user wrote to the `nnx.Variable`."""
        if isinstance(array, jax.core.Tracer):
            return array  # bound to a level of tracing
        if not self.has_form(array):
            raise changed_shape(self.name, self._last, array)
        if self._spans_processes:
            raise _written_on_one_worker(self.name)
        placed: jax.Array = self.strategy.replica_mesh.place_mirrored(array)
        self._from_program(placed)
        return placed

    def take_up(self) -> None:
        """Place what the user wrote; over several workers, the value of worker 0, on all of them.

        Collective: over several workers.
        """
        array = self.part._raw_value
        if self._spans_processes:
            array = jnp.asarray(array)
            own = array if array.is_fully_addressable else self._own(array)
            self._from_program(self._state_from(common_start(self, own)))
        elif array is not self._last:
            self._taken(array)

    def has_form(self, array: Any) -> bool:
        """Whether an array has the shape and dtype that steps know."""
        last = self._last
        return getattr(array, "shape", None) == last.shape and array.dtype == last.dtype

    def _note_state(self, state: Any) -> None:
        set_value(self.part, state)


class _PartsCell(Cell):
    """The arrays of some `nnx.Variable`s, in loops that cost little for each."""

    __slots__ = ("_parts", "_variables")

    def __init__(self, variables: Sequence[ModelVariable]) -> None:
        self._variables = list(variables)
        self._parts = [variable.part for variable in variables]

    @property
    def arrays(self) -> list[Any]:
        """Arrays that a step may give away: of what the user wrote, those on the replicas."""
        arrays = list(map(value_of, self._parts))
        if all(map(operator.is_, arrays, map(_LAST_OF, self._variables))):
            return arrays
        return [variable._for_program() for variable in self._variables]

    @arrays.setter
    def arrays(self, arrays: list[Any]) -> None:
        collections.deque(map(set_value, self._parts, arrays), maxlen=0)
        for variable, array in zip(self._variables, arrays, strict=True):
            variable._last = array


_LAST_OF = operator.attrgetter("_last")
ModelVariable._cell_kind = _PartsCell


def _written_on_one_worker(name: str) -> errors.ContextError:
    return errors.ContextError(
        errors.describe(
            f"`{name}` was written between steps, under a strategy of several workers.",
            why="Nothing says whether the other workers wrote the same, and a step does not ask.",
            fix="Call `rx.nnx.adopt(module)` again on all workers after writing: it takes the "
            "values of worker 0.",
        )
    )


def changed_shape(name: str, old: Any, new: Any) -> errors.InvalidArgumentError:
    """The error of a part that holds an array of another shape or dtype than before."""
    shape, dtype = getattr(new, "shape", "?"), getattr(new, "dtype", type(new).__name__)
    return errors.InvalidArgumentError(
        errors.describe(
            f"`{name}` was {old.dtype}{list(old.shape)} and is now {dtype}{shape}.",
            why="A compiled step replaces it by an array of its own shape and dtype.",
            fix="Cast what you write: `variable[...] = value.astype(variable.dtype)`; or, after "
            "changing a module on purpose, call `rx.nnx.adopt(module)` again.",
        )
    )


BY_PART: weakref.WeakValueDictionary[int, ModelVariable] = weakref.WeakValueDictionary()
"""The variable of each `nnx.Variable`, by its `id`; it keeps the `nnx.Variable` alive."""
