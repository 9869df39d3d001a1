"""Variables: state that a step reads and writes in place."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import EXACT
from replicax.values import _deferred, _lending
from replicax.values._cells import Cell
from replicax.values._distributed import Mirrored
from replicax.values._frames import Frame, StrategyLike, current_frame, entered
from replicax.values._indexed import IndexedUpdates
from replicax.values._initial import facts_of, initial_array
from replicax.values._kinds import VariableAggregation, VariableSynchronization
from replicax.values._operators import ArrayLike
from replicax.values._workers import check_workers_write_alike, common_start
from replicax.values._writes import Update, applied, check_shape, checked

_COUNT = itertools.count()
_LIVE: weakref.WeakSet[Variable] = weakref.WeakSet()
_KINDS: dict[str, type[Variable]] = {}


def live_variables() -> list[Variable]:
    """All variables that exist, in the order of their creation."""
    return sorted((v for v in _LIVE if v._is_there), key=lambda variable: variable._index)


class _VariableType(type):
    """Makes ``rx.Variable(...)`` return the kind of variable that the context asks for."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return super().__call__(*args, **kwargs)
        kind: Any = cls
        if cls is Variable and frame.strategy is not None:
            kind = _kind_for(frame.strategy, kwargs)
        if frame.access is None:
            return type.__call__(kind, *args, **kwargs)

        def make() -> Any:
            return type.__call__(kind, *args, **kwargs)

        if frame.updating:
            raise _created_in_update(kwargs.get("name"))
        if frame.replica is not None:
            return frame.replica.create_variable(make, facts_of(args, kwargs))
        return frame.access.create(make)


def _kind_for(strategy: StrategyLike, kwargs: dict[str, Any]) -> type[Variable]:
    asked = kwargs.get("synchronization", VariableSynchronization.AUTO)
    if VariableSynchronization.parse(asked) is VariableSynchronization.ON_READ:
        return _KINDS["on_read"]
    return _KINDS["mirrored" if strategy.parameter_device is None else "aggregating"]


class Variable(IndexedUpdates, ArrayLike, metaclass=_VariableType):
    """State that lives between steps, read with `value` and written with `assign`.

    Inside `strategy.scope()` this makes the variable that `synchronization` and the strategy ask
    for: a `MirroredVariable`, a `SyncOnReadVariable` or, under `CentralStorageStrategy`, an
    `AggregatingVariable`. Outside of every scope it is one plain array.

    * In replica context, reads give the replica's copy. What is written must be equal on all
      replicas unless `aggregation` says how to combine it: that is proved in `rx.function`, and
      checked bit by bit in the eager runner. Sync-on-read variables have one value a replica, and
      each replica writes its own.
    * In cross-replica context, reads give the common value and writes reach all copies.

    A variable may also be created in replica context, once for all replicas, and while an
    `rx.function` is traced the first time, if Python code remembers it (``if self.w is None:``).

    Context: any. Collective: a write in replica context with an aggregation, and a creation there:
    on all replicas in the same order.

    Args:
        initial_value: An array, a number, or a function of no arguments that makes one, which is
            called once. It is copied. Python floats become float32, Python integers int32.
        trainable: Whether optimizers and `rx.value_and_grad` should treat it as a weight.
        name: A name for messages; made unique by the caller if that matters.
        dtype: The dtype; by default that of the initial value.
        synchronization: A `VariableSynchronization` or its name.
        aggregation: A `VariableAggregation` or its name.

    Raises:
        InvalidArgumentError: An option is unknown, or a mean of integers is asked for.
        ContextError: Creation inside `extended.update`, or from a value that is being traced.
        CollectiveMismatchError: The replicas create different variables.

    Examples:
        >>> import replicax as rx
        >>> with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        ...     v = rx.Variable([1.0, 2.0], name="v")
        >>> v.assign_add([0.5, 0.5])
        >>> v.value
        Array([1.5, 2.5], dtype=float32)
        >>> v.at[0].set(9.0)
        >>> v.value
        Array([9. , 2.5], dtype=float32)
    """

    is_on_read: ClassVar[bool] = False
    """Whether each replica has a value of its own."""

    _cell: Cell
    _slot: int = 0
    _cell_kind: ClassVar[Any] = None
    """What holds the arrays of such variables for a step, where that is no `Cell`."""

    def __init_subclass__(cls, kind: str | None = None) -> None:
        if kind is not None:
            _KINDS[kind] = cls

    def __init__(
        self,
        initial_value: Any,
        *,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
        synchronization: VariableSynchronization | str = VariableSynchronization.AUTO,
        aggregation: VariableAggregation | str = VariableAggregation.NONE,
    ) -> None:
        self._index = next(_COUNT)
        self._lent = False
        self.name = name if name is not None else f"Variable_{self._index}"
        self.trainable = trainable
        self.synchronization = VariableSynchronization.parse(synchronization)
        self.aggregation = VariableAggregation.parse(aggregation)
        frame = current_frame()
        self.strategy: StrategyLike | None = frame.strategy if frame is not None else None
        strategy = self.strategy
        self._spans_processes = strategy is not None and strategy.replica_mesh.spans_processes
        value = initial_array(self.name, initial_value, dtype, self.aggregation)
        if self._spans_processes:
            value = common_start(self, value)
        self._cell = Cell([self._state_from(value)])
        if isinstance(initial_value, _CopyOf):
            self._value = self._placed(initial_value.variable._value)
        _LIVE.add(self)
        _deferred.note_creation(self)

    @property
    def _value(self) -> jax.Array:
        """The state of all replicas, without regard to contexts."""
        array: jax.Array = self._cell.arrays[self._slot]  # type: ignore[index] # it is our cell
        return array

    @_value.setter
    def _value(self, array: jax.Array) -> None:
        self._cell.arrays[self._slot] = array  # type: ignore[index]

    def __del__(self) -> None:
        """Let go of the array, which other variables of the cell would keep alive."""
        cell = getattr(self, "_cell", None)
        if cell is not None and cell.arrays is not None:
            cell.arrays[self._slot] = None

    # -- how the kinds differ -------------------------------------------------

    def _state_from(self, value: jax.Array) -> jax.Array:
        """The state in which every replica sees ``value``."""
        return jnp.array(value, copy=True)

    def _seen(self, state: jax.Array, frame: Frame | None) -> jax.Array:
        """What a read gives in a context whose access gave ``state``."""
        del frame
        return state

    def _combined(self, replica: Any, value: jax.Array) -> jax.Array:
        """What a write of ``value`` on each replica means. Collective unless NONE."""
        combined: jax.Array
        if self.aggregation is VariableAggregation.NONE:
            return value
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            combined = replica.broadcast(value)
        else:
            combined = replica.all_reduce(self.aggregation.value, value, EXACT)
        return combined

    def _across(self, update: Update, operand: Any, state: Any, frame: Frame | None) -> Any:
        """The new state after a write in cross-replica context."""
        del frame
        return applied(update, state, operand)

    def _copies(self) -> tuple[jax.Array, ...]:
        """The copy of each replica of this process, on its device."""
        return (self._value,)

    def _state_from_copies(self, copies: Sequence[jax.Array]) -> jax.Array:
        """The state that these copies make, of which those of a mirrored variable are equal."""
        return copies[0]

    _owner: Any = None
    """The object of another library that the variable is a part of: see `_program`."""

    @property
    def _sharding(self) -> Any:
        """How programs take and give the state."""
        return None

    def _copy_shape(self, count: int) -> tuple[int, ...]:
        """The shape of what one of ``count`` replicas holds."""
        del count
        return self.shape

    @property
    def _is_there(self) -> bool:
        """Whether it has an array."""
        return True

    _lies_elsewhere: ClassVar[bool] = False
    """Whether the state has to be moved before and after each program."""

    @property
    def _aval(self) -> jax.ShapeDtypeStruct:
        """What traces know of the state."""
        return jax.ShapeDtypeStruct(self._value.shape, self.dtype)

    def _note_state(self, state: Any) -> None:
        """Note what a context stored, for variables that are parts of another library's object."""

    def _own(self, state: jax.Array) -> jax.Array:
        """What this process holds of a state."""
        return state if self.strategy is None else self.strategy.replica_mesh.own_view(state)

    def _for_program(self) -> jax.Array:
        return self._value

    def _for_reading(self) -> jax.Array:
        """The same for a program that does not give it away."""
        return self._for_program()

    def _from_program(self, state: jax.Array) -> None:
        self._value = state

    # -- what it is ---------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; it never changes."""
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype; it never changes."""
        return self._value.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    # -- reading ------------------------------------------------------------

    @property
    def value(self) -> jax.Array:
        """The value that the current context sees.

        Context: any. An array that was read outside of a step stays valid after later steps.

        Raises:
            InvalidArgumentError: Across replicas, of a sync-on-read variable without aggregation.
        """
        frame = current_frame()
        if frame is None or frame.access is None:
            _deferred.settle()
            return self._seen(_lending.lend(self), frame)
        return self._seen(frame.access.read(self), frame)

    def read_value(self) -> jax.Array:
        """Return `value`, under the name that tf.distribute gives it."""
        return self.value

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The copies, in replica order, each on its replica's device."""
        return (self.value,)

    # -- writing ------------------------------------------------------------

    def assign(self, value: Any) -> None:
        """Set the variable.

        Args:
            value: An array of the variable's shape and dtype, a number, or another variable.

        Raises:
            InvalidArgumentError: Another shape, a dtype that does not fit, or a per-replica value.
            VaryingWriteError: In replica context: the value differs between replicas.
        """
        self._update("assign", value)

    def assign_add(self, value: Any) -> None:
        """Add to the variable; otherwise like `assign`."""
        self._update("assign_add", value)

    def assign_sub(self, value: Any) -> None:
        """Subtract from the variable; otherwise like `assign`."""
        self._update("assign_sub", value)

    def _update(self, update: Update, value: Any) -> None:
        site = errors.call_site()
        operand = checked(self, update, value)
        check_shape(self, update, operand.shape)
        check_workers_write_alike(self, update, operand)
        self._write(update, operand, site)

    def _write(self, update: Update, operand: Any, site: errors.CallSite | None) -> None:
        """Write what was checked, as the context says."""
        frame = current_frame()
        if frame is not None and frame.sees_one_copy and frame.access is not None:
            if not frame.updating:
                operand = self._combined(frame.replica, operand)
            before = frame.access.read(self) if update != "assign" else None
            frame.access.store(self, applied(update, before, operand), site)
        else:
            self._change_across(
                lambda state: self._across(update, operand, state, frame), frame, site
            )

    def _change_across(self, change: Any, frame: Frame | None, site: Any) -> None:
        """Replace the state by a function of it in cross-replica context."""
        if frame is None or frame.access is None:
            _deferred.settle()
            self._store_directly(change(self._own(self._value)))
        else:
            frame.access.store(self, change(frame.access.read(self)), site)

    def _store_directly(self, state: Any) -> None:
        if isinstance(state, jax.core.Tracer):
            raise errors.ContextError(
                errors.describe(
                    f"Variable `{self.name}` was written under `jax.jit` or another "
                    "transformation, outside of an `rx.function`.",
                    why="The value exists only while JAX traces; the variable would be left "
                    "without a usable one.",
                    fix="Decorate the function with `rx.function` instead of `jax.jit`, or return "
                    "the value and assign it outside.",
                )
            )
        self._value = self._placed(state)
        self._lent = False

    def _placed(self, state: Any) -> jax.Array:
        """A state as an array of its own, where it belongs."""
        return jnp.array(state, copy=True)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.name!r} {self.dtype}[{', '.join(map(str, self.shape))}]>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        """A variable of the same strategy that holds the same value, and a copy of its own."""
        frame = current_frame()
        inside = dataclasses.replace(frame, strategy=self.strategy) if frame is not None else None
        with entered(inside or Frame(self.strategy)):
            copied: Variable = type(self)(
                _CopyOf(self),
                trainable=self.trainable,
                name=self.name,
                synchronization=self.synchronization,
                aggregation=self.aggregation,
            )
        memo[id(self)] = copied
        return copied

    def __copy__(self) -> Variable:
        """As a deep copy: two variables must not share memory that a step gives away."""
        return self.__deepcopy__({})

    def __reduce__(self) -> NoReturn:
        raise errors.UnimplementedError(
            errors.describe(
                f"Variable `{self.name}` cannot be pickled.",
                why="It lives on the devices of its strategy.",
                fix="Save it with `rx.checkpoint.Checkpoint`; or save its value, "
                "`numpy.asarray(variable)`, and `assign` it to a variable after loading.",
            )
        )

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _CopyOf:
    """An initial value: what each copy of another variable holds."""

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    def __call__(self) -> jax.Array:
        return self.variable._copies()[0]


class MirroredVariable(Variable, Mirrored, kind="mirrored"):
    """A variable with one copy a replica; the copies are always equal.

    `rx.Variable` makes it inside `strategy.scope()`.
    """

    strategy: StrategyLike

    def _state_from(self, value: jax.Array) -> jax.Array:
        return self.strategy.replica_mesh.place_mirrored(value)

    def _placed(self, state: Any) -> jax.Array:
        return self.strategy.replica_mesh.place_mirrored(state)

    def _seen(self, state: jax.Array, frame: Frame | None) -> jax.Array:
        is_direct = self._spans_processes and (frame is None or frame.access is None)
        return self._own(state) if is_direct else state

    def _copies(self) -> tuple[jax.Array, ...]:
        return self.strategy.replica_mesh.components(self._value)

    def _state_from_copies(self, copies: Sequence[jax.Array]) -> jax.Array:
        return self.strategy.replica_mesh.from_components(copies)

    @property
    def _sharding(self) -> Any:
        return self.strategy.replica_mesh.mirrored

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The copies of this process, in replica order, each on its replica's device."""
        frame = current_frame()
        if frame is not None and frame.access is not None:
            return (self.value,) * self.strategy.num_replicas_in_sync
        _lending.lend(self)
        return self._copies()


def _created_in_update(name: str | None) -> errors.ContextError:
    return errors.ContextError(
        errors.describe(
            f"Variable `{name or '?'}` was created inside `extended.update`.",
            why="The function there acts on one copy of a variable at a time.",
            fix="Create it before, under `with strategy.scope():`.",
        )
    )
