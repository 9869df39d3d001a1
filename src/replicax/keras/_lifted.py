"""Keras variables as variables of a step.

A lifted variable stands for one of Keras and keeps no array of its own: the array is the Keras
variable's, before and after each step.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import keras

from replicax import errors
from replicax.collectives import TURNS
from replicax.keras import _compat
from replicax.keras._distribution import strategy_of_variable
from replicax.keras._rules import Rule, rule_of
from replicax.step import surrounding_trace
from replicax.values import (
    Frame,
    MirroredVariable,
    VariableAggregation,
    VariableSynchronization,
    current_frame,
)
from replicax.values._cells import Cell
from replicax.values._mesh import copied
from replicax.values._variable import _COUNT, _LIVE


class _Made:
    """Arrays that a step made; None in the place of one that another step has taken over.

    Attributes:
        arrays: The arrays.
        is_latest: Whether no other step has made any of them since.
    """

    __slots__ = ("arrays", "is_latest")

    def __init__(self, arrays: list[Any]) -> None:
        self.arrays, self.is_latest = arrays, False


# Where the array lies that a step made last, by the id of its Keras variable. One that no step made
# may be somebody else's as well, and must not be given away.
_MADE: dict[int, tuple[_Made, int]] = {}


def _note_made(made: _Made, keys: Sequence[int]) -> None:
    """Let go of what other steps made of these variables before."""
    for place, key in enumerate(keys):
        before, slot = _MADE.get(key, (made, place))
        if before is not made:
            before.is_latest = False
            before.arrays[slot] = None
        _MADE[key] = made, place
    made.is_latest = True


_LIFTED: dict[int, tuple[weakref.ref[Any], Any]] = {}


class LiftedVariable(MirroredVariable):
    """What stands for a Keras variable that lies on the replicas of a strategy.

    Attributes:
        rule: How what replicas write becomes one value.
    """

    def __init__(self, variable: Any, strategy: Any) -> None:
        self._index = next(_COUNT)
        self._lent = False
        self._reference = weakref.ref(variable)
        self._key = id(variable)
        self._kind = (tuple(variable.shape), jax.numpy.dtype(str(variable.dtype)))
        self.name = variable.path
        self.trainable = variable.trainable
        self.synchronization = VariableSynchronization.AUTO
        self.aggregation = VariableAggregation.NONE
        self.strategy = strategy
        self.rule: Rule | None = rule_of(variable)
        self._spans_processes = strategy is not None and strategy.replica_mesh.spans_processes
        _LIVE.add(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; it never changes."""
        return self._kind[0]

    @property
    def dtype(self) -> Any:
        """The dtype; it never changes."""
        return self._kind[1]

    @property
    def _is_there(self) -> bool:
        variable = self._reference()
        return variable is not None and _compat.array_of(variable) is not None

    @property
    def _value(self) -> jax.Array:
        array = _compat.array_of(self._reference())
        if array is None:
            raise _taken_out(self.name)
        found: jax.Array = array
        return found

    @_value.setter
    def _value(self, array: jax.Array) -> None:
        _compat.set_array(self._reference(), array)
        _note_made(_Made([array]), [self._key])

    def _for_reading(self) -> jax.Array:
        return self._value

    def _for_program(self) -> jax.Array:
        array: jax.Array = own_arrays([self._reference()], [self._key])[0]
        return array


class _KerasCell(Cell):
    """The arrays of some Keras variables."""

    __slots__ = ("_keys", "_made", "_variables")

    def __init__(self, variables: Sequence[LiftedVariable]) -> None:
        self._variables = [variable._reference() for variable in variables]
        self._keys = [variable._key for variable in variables]
        self._made = _Made([None] * len(self._keys))

    @property
    def arrays(self) -> list[Any]:
        """Arrays that a step may give away."""
        arrays = _compat.arrays_of(self._variables)
        # Most often they are those of the last step, and nobody else's: all loops are in C.
        if all(map(operator.is_, arrays, self._made.arrays)):
            holders = sum(map(sys.getrefcount, arrays)) - (arrays[0] is TURNS.output)
            if holders <= (_OWN_REFERENCES + 1) * len(arrays):  # and `_made`; none has fewer
                return arrays
        del arrays  # It counts as a holder.
        return own_arrays(self._variables, self._keys)

    @arrays.setter
    def arrays(self, arrays: list[Any]) -> None:
        _compat.set_arrays(self._variables, arrays)
        made = self._made
        made.arrays[:] = arrays
        if not made.is_latest:
            _note_made(made, self._keys)


LiftedVariable._cell_kind = _KerasCell


# Who holds an array that is nobody else's: the variable, the list of `own_arrays` and the call that
# counts.
_OWN_REFERENCES = 3


def own_arrays(variables: Sequence[Any], keys: Sequence[int]) -> list[Any]:
    """The arrays of Keras variables, after making copies of those that others may hold too.

    An array that was read from a variable, or assigned to it, stays valid after steps.
    """
    arrays = _compat.arrays_of(variables)
    references = sys.getrefcount
    for i, key in enumerate(keys):
        made, place = _MADE.get(key, (None, 0))
        if made is not None and made.arrays[place] is arrays[i]:
            made.arrays[place] = None
            count = references(arrays[i]) - (arrays[i] is TURNS.output)
            if count <= _OWN_REFERENCES:
                made.arrays[place] = arrays[i]
                continue
        if arrays[i] is None:
            raise _taken_out(variables[i].path)
        if arrays[i].is_deleted():  # A running step asks again, which has given it away.
            continue
        arrays[i] = copied(arrays[i])
        _compat.set_array(variables[i], arrays[i])
        _note_made(_Made([arrays[i]]), [key])
    return arrays


def lift(variable: Any, frame: Frame | None = None) -> LiftedVariable:
    """What stands for a Keras variable in the current context.

    Raises:
        MixedStrategiesError: It was created outside of the scope of the strategy that runs.
    """
    known = _LIFTED.get(id(variable))
    if known is not None and known[0]() is variable:
        lifted: LiftedVariable = known[1]
        if lifted.strategy is strategy_of_variable(variable):
            return lifted
    # Not a creation in the eyes of the context: replicas need not meet for it.
    lifted = LiftedVariable.__new__(LiftedVariable)
    LiftedVariable.__init__(lifted, variable, strategy_of_variable(variable))
    key = id(variable)

    def forget(_: Any) -> None:
        _LIFTED.pop(key, None)
        _MADE.pop(key, None)

    _LIFTED[key] = (weakref.ref(variable, forget), lifted)
    frame = current_frame() if frame is None else frame
    trace = surrounding_trace(frame.access) if frame is not None else None
    if trace is not None:
        trace.create(lambda: lifted)  # An input of the trace that follows.
    return lifted


def parts(value: Any) -> list[tuple[str, LiftedVariable]] | None:
    """The variables of a model, layer, optimizer or metric of Keras, for checkpoints.

    Names of layers count the layers of a program, so places are counted instead; what a variable is
    for stands at the end of its name.
    """
    if isinstance(value, keras.Variable):
        return [("", lift(value))]
    if not isinstance(value, _HOLDERS):
        return None
    groups = {"variables": list(value.variables)}
    if isinstance(value, keras.Model):
        optimizer = getattr(value, "optimizer", None)
        groups["optimizer.variables"] = list(getattr(optimizer, "variables", ()))
        groups["metrics_variables"] = list(value.metrics_variables) if value.compiled else []
    return [
        (f".{group}[{i}].{variable.name.rpartition('_')[2]}", lift(variable))
        for group, variables in groups.items()
        for i, variable in enumerate(variables)
    ]


_HOLDERS = (
    keras.Layer,
    keras.optimizers.Optimizer,
    keras.metrics.Metric,
    keras.random.SeedGenerator,
)


def _taken_out(name: str) -> errors.FailedPreconditionError:
    return errors.FailedPreconditionError(
        errors.describe(
            f"Keras variable `{name}` has no value at present.",
            why="`model.fit` takes the arrays out of the variables while it runs.",
            fix="Run the step before or after `fit`, not in one of its callbacks.",
        )
    )
