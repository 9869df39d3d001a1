"""Variables: state that a step reads and writes in place."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Literal, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.values import _lending
from replicax.values._cells import Cell
from replicax.values._combine import as_array
from replicax.values._distributed import Mirrored, PerReplica
from replicax.values._frames import Frame, StrategyLike, current_frame, entered
from replicax.values._kinds import VariableAggregation, VariableSynchronization
from replicax.values._operators import ArrayLike

Update = Literal["assign", "assign_add", "assign_sub"]

_COUNT = itertools.count()
_LIVE: weakref.WeakSet[Variable] = weakref.WeakSet()


def live_variables() -> list[Variable]:
    """All variables that exist, in the order of their creation."""
    return sorted(_LIVE, key=lambda variable: variable._index)


class _VariableType(type):
    """Makes ``rx.Variable(...)`` return the kind of variable that the scope asks for."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if cls is Variable and frame is not None and frame.strategy is not None:
            return type.__call__(MirroredVariable, *args, **kwargs)
        return super().__call__(*args, **kwargs)


class Variable(ArrayLike, metaclass=_VariableType):
    """State that lives between steps, read with `value` and written with `assign`.

    Inside `strategy.scope()` this makes a `MirroredVariable`: one copy a replica, always equal.
    Outside of every scope it is one plain array.

    * In replica context, reads give the replica's copy. What is written must be equal on all
      replicas unless `aggregation` says how to combine it: that is proved in `rx.function`, and
      checked bit by bit in the eager runner.
    * In cross-replica context, reads give the common value and writes reach all copies.

    Context: any; creation in cross-replica context or outside. Collective: a write in replica
    context with an aggregation, on all replicas in the same order.

    Args:
        initial_value: An array, a number, or a function of no arguments that makes one. It is
            copied. Python floats become float32, Python integers int32.
        trainable: Whether optimizers and `rx.value_and_grad` should treat it as a weight.
        name: A name for messages; made unique by the caller if that matters.
        dtype: The dtype; by default that of the initial value.
        synchronization: A `VariableSynchronization` or its name.
        aggregation: A `VariableAggregation` or its name.

    Raises:
        InvalidArgumentError: An option is unknown, or a mean of integers is asked for.
        UnimplementedError: ON_READ synchronization.
        ContextError: Creation in replica context or while a step is traced.

    Examples:
        >>> import replicax as rx
        >>> with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        ...     v = rx.Variable([1.0, 2.0], name="v")
        >>> v.assign_add([0.5, 0.5])
        >>> v.value
        Array([1.5, 2.5], dtype=float32)
    """

    _cell: Cell
    _slot: int = 0

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
        _require_creation_context(self.name, frame)
        self.strategy: StrategyLike | None = frame.strategy if frame is not None else None
        if self.synchronization is VariableSynchronization.ON_READ:
            raise errors.UnimplementedError(
                errors.describe(
                    f"Variable `{self.name}` asks for ON_READ synchronization.",
                    why="Only variables that are synchronized when written exist so far.",
                    fix="Return the per-replica value from the step and combine it with "
                    "`strategy.reduce`.",
                )
            )
        self._cell = Cell([self._initial_array(initial_value, dtype)])
        _LIVE.add(self)

    def _initial_array(self, initial_value: Any, dtype: Any) -> jax.Array:
        if callable(initial_value):
            initial_value = initial_value()
        if isinstance(initial_value, PerReplica):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"Variable `{self.name}` cannot start from {initial_value!r}.",
                    why="All copies of a variable start from one value.",
                    fix="Pass one array.",
                )
            )
        if isinstance(initial_value, ArrayLike):
            initial_value = initial_value.value
        array = as_array(initial_value, f"The initial value of variable `{self.name}`")
        array = jnp.array(array, dtype=dtype, copy=True)
        if self.aggregation is VariableAggregation.MEAN and not jnp.issubdtype(
            array.dtype, jnp.inexact
        ):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"Variable `{self.name}` of dtype {array.dtype} cannot have MEAN aggregation.",
                    why="The mean of integers is not an integer.",
                    fix="Use a floating dtype, or SUM or ONLY_FIRST_REPLICA.",
                )
            )
        if self.strategy is None:
            return array
        return self.strategy.replica_mesh.place_mirrored(array)

    @property
    def _value(self) -> jax.Array:
        """The array of all replicas, without regard to contexts."""
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
        return self._value.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._value.size

    # -- reading ------------------------------------------------------------

    @property
    def value(self) -> jax.Array:
        """The value that the current context sees.

        Context: any. An array that was read outside of a step stays valid after later steps.
        """
        frame = current_frame()
        if frame is None or frame.access is None:
            return _lending.lend(self)
        return frame.access.read(self)

    def read_value(self) -> jax.Array:
        """Return `value`, under the name that tf.distribute gives it."""
        return self.value

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
        frame = current_frame()
        operand = self._checked(update, value)
        if frame is not None and frame.replica is not None:
            operand = self._aggregated(frame, operand)
        if update != "assign":
            before = self.value if frame is not None and frame.access is not None else self._value
            operand = before + operand if update == "assign_add" else before - operand
        if frame is None or frame.access is None:
            self._store_directly(operand)
        else:
            frame.access.store(self, operand, site)

    def _aggregated(self, frame: Frame, value: jax.Array) -> jax.Array:
        """Combine the replicas' values as the aggregation says. Collective unless NONE."""
        replica: Any = frame.replica
        if self.aggregation is VariableAggregation.NONE:
            return value
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            combined: jax.Array = replica.broadcast(value)
        else:
            combined = replica.all_reduce(self.aggregation.value, value)
        return combined

    def _checked(self, update: Update, value: Any) -> jax.Array:
        if isinstance(value, PerReplica):
            raise errors.VaryingWriteError(
                errors.describe(
                    f"`{self.name}.{update}` was given {value!r} in cross-replica context.",
                    why="The variable is mirrored: its copies are always equal, but the components "
                    "of a per-replica value may differ.",
                    fix="Reduce the value first: `strategy.reduce('mean', value, axis=None)`.",
                )
            )
        if isinstance(value, ArrayLike):
            value = value.value
        given = getattr(value, "dtype", type(value).__name__)
        array = as_array(value, f"The value given to `{self.name}.{update}`")
        if update != "assign" and not jnp.issubdtype(self.dtype, np.number):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`{self.name}.{update}`: the variable has dtype {self.dtype}, which has no "
                    "sums or differences.",
                    fix="Compute the new value and use `assign`.",
                )
            )
        if array.shape != self.shape:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`{self.name}.{update}` was given shape {array.shape}, but the variable has "
                    f"shape {self.shape}.",
                    fix="Shapes must be equal; use `jnp.broadcast_to` if you mean to broadcast.",
                )
            )
        if not _fits(array, self.dtype):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`{self.name}.{update}` was given {given}, but the variable has dtype "
                    f"{self.dtype}.",
                    why="The conversion would lose information in silence.",
                    fix=f"Convert it where you mean to: `value.astype({str(self.dtype)!r})`.",
                )
            )
        return array if array.dtype == self.dtype else array.astype(self.dtype)

    def _store_directly(self, value: Any) -> None:
        if isinstance(value, jax.core.Tracer):
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
        if self.strategy is not None:
            value = self.strategy.replica_mesh.place_mirrored(value)
        else:
            value = jnp.array(value, copy=True)
        self._value = value
        self._lent = False

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.name!r} {self.dtype}[{', '.join(map(str, self.shape))}]>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        """A variable of the same strategy that holds the same value, and a copy of its own."""
        frame = current_frame()
        outside = Frame(self.strategy, *((frame.replica, frame.access) if frame else ()))
        with entered(outside):
            copied: Variable = type(self)(
                lambda: self.value,
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
                fix="Save its value, `numpy.asarray(variable)`, and `assign` it to a variable "
                "after loading.",
            )
        )

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class MirroredVariable(Variable, Mirrored):
    """A variable with one copy a replica; the copies are always equal.

    `rx.Variable` makes it inside `strategy.scope()`.
    """

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The copies, in replica order, each on its replica's device."""
        frame = current_frame()
        if self.strategy is None or (frame is not None and frame.access is not None):
            return (self.value,) * (self.strategy.num_replicas_in_sync if self.strategy else 1)
        return self.strategy.replica_mesh.components(_lending.lend(self))


def _fits(array: jax.Array, dtype: Any) -> bool:
    """Whether an array can become ``dtype`` without losing information."""
    if array.dtype == dtype:
        return True
    if any(jnp.issubdtype(d, jax.dtypes.prng_key) for d in (array.dtype, dtype)):
        return False
    return bool(jnp.result_type(array, dtype) == dtype)


def _require_creation_context(name: str, frame: Frame | None) -> None:
    if frame is None or (frame.replica is None and frame.access is None):
        return
    where = "in replica context" if frame.replica is not None else "inside an rx.function"
    raise errors.ContextError(
        errors.describe(
            f"Variable `{name}` was created {where}.",
            why="The function may be traced again or run once a replica, and would create it anew.",
            fix="Create it before, under `with strategy.scope():`, and use it in the function.",
        )
    )
