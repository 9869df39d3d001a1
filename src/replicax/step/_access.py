"""How variables are read and written while a program is traced.

A trace sees variables through an access object: reads give tracers, writes are recorded, and the
engine turns both into inputs and outputs of the compiled program. Accesses nest: the function,
in it a replica function, in it a differentiated function. Each sees the writes of its own and
otherwise asks its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import Entry
from replicax.step._callbacks import Callbacks
from replicax.step._run_facts import RunFacts
from replicax.values import (
    Frame,
    PerReplica,
    Provenance,
    StrategyLike,
    Variable,
    VariableAccess,
    current_frame,
    entered,
)
from replicax.values._tracing import trace_level


class TracedVariables:
    """Variables as one level of tracing sees them.

    Args:
        parent: Where values come from that were not written here; None at the top.
        values: Values that this level starts from.
    """

    def __init__(
        self, parent: VariableAccess | None, values: Mapping[Variable, Any] | None = None
    ) -> None:
        self.parent = parent
        self.values: dict[Variable, Any] = dict(values or {})
        self.stored: dict[Variable, errors.CallSite | None] = {}
        self._level = trace_level()

    @property
    def is_here(self) -> bool:
        """Whether code that runs now belongs to this level, and not to one inside of it."""
        return trace_level() == self._level

    @property
    def is_local(self) -> bool:
        """Whether states are those of one replica."""
        return self.parent is not None and self.parent.is_local

    def create(self, make: Callable[[], Variable]) -> Variable:
        """Create a variable outside of the trace."""
        if self.parent is None:
            raise errors.InternalError("No function is being traced.")
        return self.parent.create(make)

    def read(self, variable: Variable) -> jax.Array:
        """Return the state at this level."""
        if variable in self.values:
            value: jax.Array = self.values[variable]
            return value
        if self.parent is None:
            raise _unknown(variable)
        return self.parent.read(variable)

    def store(self, variable: Variable, value: Any, call_site: errors.CallSite | None) -> None:
        """Record a write.

        Raises:
            ContextError: The write is inside a transformed function (`lax.scan`, `jax.grad`,
                `jax.jit`, ...), whose values must not leave it in this way.
        """
        if not self.is_here:
            raise written_inside_transformation(variable, call_site)
        self.values[variable] = value
        self.stored[variable] = call_site
        variable._note_state(value)


class FunctionTrace(TracedVariables):
    """The outermost level: one trace of an `rx.function`.

    Attributes:
        strategy: The strategy whose replicas the function runs on, once it is known.
        used: Variables that were read or written.
        created: Variables that were created; the trace holds their first values as constants.
        entries: The collectives, in program order.
        runs: The runs of replica functions, in program order.
        mirrored: Results of runs that are proved mirrored, by identity, and whether a collective
            combined them.
        feed: The batches that the function takes by itself; see `_feeding`.
        taking: The level at which it may take them, if that is the level of one of several steps.
        callbacks: The host callbacks.
        objects: Objects of model libraries that replicas saw in a form of their own.
    """

    def __init__(self, values: Mapping[Variable, Any], function_id: int = 0) -> None:
        super().__init__(None, values)
        self._function_id = function_id
        self.strategy: StrategyLike | None = None
        self.used: set[Variable] = set()
        self.created: list[Variable] = []
        self.entries: list[Entry] = []
        self.runs: list[RunFacts] = []
        self.mirrored: dict[int, tuple[Any, bool]] = {}
        self.feed: Any = None
        self.taking: TracedVariables | None = None
        self.callbacks = Callbacks()
        self.objects: dict[Any, None] = {}

    def read(self, variable: Variable) -> jax.Array:
        """Return the value, and note that the program needs the variable."""
        self.used.add(variable)
        return super().read(variable)

    def store(self, variable: Variable, value: Any, call_site: errors.CallSite | None) -> None:
        """Record a write, and note that the program needs the variable."""
        self.used.add(variable)
        super().store(variable, value, call_site)

    def create(self, make: Callable[[], Variable]) -> Variable:
        """Create a variable outside of the trace, which is made anew afterwards."""
        frame = current_frame()
        strategy = frame.strategy if frame is not None else None
        with jax.ensure_compile_time_eval(), entered(Frame(strategy)):
            variable = make()
        self.values[variable] = constant(variable._value)
        self.created.append(variable)
        return variable

    def per_replica(self, stacked: Any, rows: Any, cause: str) -> PerReplica:
        """Wrap a varying result."""
        return PerReplica.from_stacked(stacked, rows, Provenance(self._function_id, cause))

    def is_counted(self, value: Any) -> bool:
        """Whether ``value`` is a mirrored result that no collective combined."""
        result, is_combined = self.mirrored.get(id(value), (None, True))
        return result is value and not is_combined

    def runs_on(self, strategy: StrategyLike) -> None:
        """Note that the program runs on the replicas of ``strategy``.

        Raises:
            MixedStrategiesError: It also runs on those of another strategy.
        """
        if self.strategy is None:
            self.strategy = strategy
        elif self.strategy is not strategy:
            raise errors.MixedStrategiesError(
                errors.describe(
                    f"One rx.function uses two strategies: {self.strategy.name} and "
                    f"{strategy.name}.",
                    why="It becomes one program over the devices of one strategy.",
                    fix="Make one function for each strategy.",
                )
            )


def constant(array: jax.Array) -> Any:
    """The array as a constant of a trace, which lies on no devices."""
    if not (array.is_fully_addressable or array.is_fully_replicated):
        # The copies of a new variable are equal, and some lie in other processes.
        with jax.ensure_compile_time_eval():
            return constant(jnp.broadcast_to(array.addressable_data(0), array.shape))
    if not jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return np.asarray(array)
    with jax.ensure_compile_time_eval():
        data = jnp.asarray(np.asarray(jax.random.key_data(array)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))


class ForeignTrace(FunctionTrace):
    """A run inside somebody else's trace, such as `jax.jit`: variables are out of reach."""

    def __init__(self) -> None:
        super().__init__({})

    def read(self, variable: Variable) -> jax.Array:
        """Refuse."""
        raise out_of_reach(variable)

    def store(self, variable: Variable, value: Any, call_site: errors.CallSite | None) -> None:
        """Refuse."""
        del value, call_site
        raise out_of_reach(variable)

    def create(self, make: Callable[[], Variable]) -> Variable:
        """Refuse."""
        del make
        raise errors.ContextError(
            errors.describe(
                "A variable was created under `jax.jit` or another JAX transformation.",
                fix="Create it before, or decorate the function with `rx.function` instead.",
            )
        )


def surrounding_trace(access: VariableAccess | None) -> FunctionTrace | None:
    """The trace of the `rx.function` that an access belongs to, or None."""
    while isinstance(access, TracedVariables) and not isinstance(access, FunctionTrace):
        access = access.parent
    return access if isinstance(access, FunctionTrace) else None


def require_same_strategy(variable: Variable, strategy: StrategyLike, doing: str) -> None:
    """Check that a variable belongs to the strategy in whose replica context it is used.

    Raises:
        MixedStrategiesError: It was made under another strategy, or outside of every scope.
    """
    if variable.strategy is strategy:
        return
    if variable.strategy is None:
        what = f"Variable `{variable.name}` was {doing} in a replica of {strategy.name}, but it "
        what += "was created outside of the strategy's scope."
        why = "It has one copy, on one device, and nothing keeps replicas in step with it."
    else:
        what = f"Variable `{variable.name}` of {variable.strategy.name} was {doing} in a replica "
        what += f"of {strategy.name}."
        why = "Its copies lie on the devices of its own strategy."
    fix = "Create the variable under `with strategy.scope():` of the strategy that runs the step."
    raise errors.MixedStrategiesError(errors.describe(what, why=why, fix=fix))


def _unknown(variable: Variable) -> errors.ContextError:
    return errors.ContextError(
        errors.describe(
            f"Variable `{variable.name}` was created while the function was traced.",
            fix="Create it before the function is called, and use it in the function.",
        )
    )


def out_of_reach(variable: Variable) -> errors.ContextError:
    """The error of using a variable while JAX traces something else than an `rx.function`."""
    return errors.ContextError(
        errors.describe(
            f"Variable `{variable.name}` was used under `jax.jit` (or another JAX "
            "transformation) outside of an `rx.function`.",
            why="JAX would keep the value of this moment as a constant and lose writes.",
            fix="Decorate the function with `rx.function` instead of `jax.jit`.",
        )
    )


def written_inside_transformation(
    variable: Variable, call_site: errors.CallSite | None
) -> errors.ContextError:
    where = f" at {call_site}" if call_site is not None else ""
    return errors.ContextError(
        errors.describe(
            f"Variable `{variable.name}` was written inside a transformed function{where}.",
            why="The body of `lax.scan`, `lax.cond`, `jax.grad`, `jax.jit` or `jax.vmap` has "
            "values of its own, which cannot leave it through a variable.",
            fix="Return the new value from the transformed function and assign it outside. In a "
            "loss function, use `rx.value_and_grad`, which carries writes out.",
        )
    )
