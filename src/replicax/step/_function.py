"""`rx.function`: a Python function becomes one compiled program over all replicas."""

from __future__ import annotations

import copy
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, overload

import jax

from replicax import errors
from replicax.collectives import CompiledCollective, Entry, collectives_in
from replicax.recording import RECORDER
from replicax.step._arguments import all_parameter_names
from replicax.step._feeding import FedFunction
from replicax.step._methods import BoundFunction, reference
from replicax.step._program import NotCompared, Program, VariablesChanged
from replicax.step._programs import Programs, stacked
from replicax.step._several_steps import SeveralSteps, called_inside, checked_steps
from replicax.step._sources import OtherBatches, has_sources
from replicax.step._state import donated_names
from replicax.step._static import bound_to, check_hashable, split_static, static_names, without
from replicax.values import StrategyLike, current_frame
from replicax.values._frames import STACK

_COUNT = itertools.count(1)
_LIVE: weakref.WeakSet[Function] = weakref.WeakSet()

# What a program raises, before it runs, for arguments of another structure or in other places.
# What XLA raises while it runs is not among them: by then, arrays have been given away.
_OTHER_ARGUMENTS = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    VariablesChanged,
    NotCompared,
)


class Function:
    """A function that is traced once and runs as one compiled program; see `rx.function`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        donate: int | str | Sequence[int | str] = (),
        static_argnames: str | Sequence[str] = (),
        steps_per_execution: int = 1,
    ) -> None:
        if not callable(fn):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"rx.function takes a function, not {fn!r}.",
                    fix="Write `@rx.function` or `rx.function(fn, donate=...)`.",
                )
            )
        self.fn = fn
        self._id = next(_COUNT)
        functools.update_wrapper(self, fn)
        self.__name__: str = getattr(fn, "__name__", type(fn).__name__)
        self._donate = donated_names(donate, all_parameter_names(fn), self.__name__)
        names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self._static = static_names(names, fn, self.__name__)
        self._variants: dict[tuple[tuple[str, type, Any], ...], Function] = {}
        self._programs = self._new_programs()
        self._latest: Program | None = None
        self._methods: dict[int, Function] = {}
        self._steps = checked_steps(steps_per_execution)
        self._fed = self._new_fed()
        self._gets_batches = False
        _LIVE.add(self)

    def _new_programs(self) -> Programs:
        return Programs(self, self._donate, self._id)

    def _new_fed(self) -> FedFunction | None:
        """What takes the batches of several steps, where a call runs several."""
        if self._steps == 1 or self._static:
            return None
        return SeveralSteps(self, self._getting_batches, self._donate, self._steps)

    def __get__(self, instance: Any, owner: type | None = None) -> Function | BoundFunction:
        """As a method: a function for each object, of which `self` is a fixed part."""
        if instance is None:
            return self
        key = id(instance)
        if key not in self._methods:
            alive = reference(instance, lambda _: self._methods.pop(key, None))
            self._methods[key] = self._with(bound_to(alive, self.fn))
        return BoundFunction(self._methods[key], instance)

    def fresh(self) -> Function:
        """The same function, which has not been traced yet; one step, where a call runs several."""
        return self._with(self.fn, steps=1)

    def _with(self, fn: Callable[..., Any], steps: int | None = None) -> Function:
        return Function(
            fn,
            donate=self._donate,
            static_argnames=tuple(self._static),
            steps_per_execution=steps or self._steps,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        """A function of its own, which has not been traced yet."""
        return self._with(copy.deepcopy(self.fn, memo))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step.

        Context: cross-replica or outside. Inside another `rx.function` or a replica function, the
        plain Python function is called.
        """
        frames = STACK.frames  # `current_frame` is another call of Python; see `Program.run`.
        scope = None
        if frames:
            frame = frames[-1]
            if frame.access is not None or frame.replica is not None or frame.merging is not None:
                if self._steps > 1:
                    raise called_inside(self.__name__, self._steps)
                return self.fn(*args, **kwargs)
            scope = frame.strategy
        latest = self._latest
        if latest is not None and latest.scope is scope:
            # Most often the arguments are as in the last call. Asking first would take as long as
            # JAX takes to find out.
            try:
                return latest.step(args, kwargs)
            except _OTHER_ARGUMENTS as error:
                is_final = isinstance(error, errors.CollectiveMismatchError)
                if is_final or latest.failed_in_users_code:
                    latest.failed_in_users_code = False
                    RECORDER.gave_up(latest.subject, has_run=True)
                    raise
                RECORDER.gave_up(latest.subject, has_run=False)
            except OtherBatches:
                latest.failed_in_users_code = False
                RECORDER.gave_up(latest.subject, has_run=False)
            except BaseException:
                latest.failed_in_users_code = False
                RECORDER.gave_up(latest.subject, has_run=True)
                raise
        return self._call_anew(scope, args, kwargs)

    def _call_anew(
        self, scope: StrategyLike | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Find or build the program for these arguments, and run it."""
        if self._fed is not None:
            return self._fed.call(args, kwargs)
        if self._static:
            variant, args, kwargs = self._specialised(args, kwargs)
            return variant(*args, **kwargs)
        if not has_sources(args, kwargs):
            try:
                return self._call_program(scope, args, kwargs)
            except OtherBatches:
                if self._gets_batches:
                    raise
        return self._feeding().call(args, kwargs)

    def _feeding(self) -> FedFunction:
        """From now on, each call takes batches for the function."""
        if self._fed is None:
            self._fed, self._latest = FedFunction(self, self._getting_batches), None
        return self._fed

    def _getting_batches(self, fn: Callable[..., Any]) -> Function:
        made = Function(fn, donate=self._donate)
        made._gets_batches = True
        return made

    @property
    def calls_back(self) -> bool:
        """Whether its programs have host callbacks."""
        return any(program.callbacks for program in self._programs)

    def _call_program(
        self, scope: StrategyLike | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        program, *given = self._programs.find(scope, args, kwargs)
        args, kwargs = program.placed(*given)
        self._latest = program
        while True:
            try:
                return program.run(args, kwargs)
            except VariablesChanged as changed:
                RECORDER.gave_up(program.subject, has_run=False)
                program = self._latest = self._programs.rebuilt(
                    program, changed.traced, args, kwargs
                )
            except NotCompared as new:
                RECORDER.gave_up(program.subject, has_run=False)
                self._compare(program, new, args, kwargs, given)
            except BaseException as error:
                has_run = not isinstance(error, OtherBatches)
                RECORDER.gave_up(program.subject, has_run=has_run)
                raise
            finally:
                program.failed_in_users_code = False

    def _compare(
        self, program: Program, new: NotCompared, args: Any, kwargs: Any, given: Any
    ) -> None:
        """Have the workers compare a new trace; where they differ, it is made anew next time."""
        try:
            program.compare(new, args, kwargs, given)
        except BaseException:
            self._latest = None
            self._programs.forget(program)
            raise

    def _specialised(self, args: Any, kwargs: Any) -> tuple[Function, tuple[Any, ...], Any]:
        """The function for these values of the static arguments, and the other arguments."""
        static, args, kwargs = split_static(self._static, self._programs.names(args), args, kwargs)
        check_hashable(static, self.__name__)
        # With the types, because 1 == 1.0 == True.
        key = tuple((name, type(static[name]), static[name]) for name in sorted(static))
        if key not in self._variants:
            fn = without(self.fn, static)
            self._variants[key] = Function(fn, donate=self._donate, steps_per_execution=self._steps)
        return self._variants[key], args, kwargs

    # -- looking at it --------------------------------------------------------------

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower the step for these arguments, without running it.

        Returns:
            JAX's own object: `.as_text()`, `.compile().as_text()`, `.compile().cost_analysis()`.
        """
        lowered: jax.stages.Lowered = self.look_at(Function._lower, args, kwargs)
        return lowered

    def look_at(self, look: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What `look` says of the function that these arguments are for, without running it.

        Args:
            look: Is called with a `Function` and its arguments, batches in the place of iterators.
            args: The arguments.
            kwargs: The named arguments.
        """
        if self._static:
            variant, args, kwargs = self._specialised(args, kwargs)
            return variant.look_at(look, args, kwargs)
        if self._fed is None and not has_sources(args, kwargs):
            try:
                return look(self, *args, **kwargs)
            except OtherBatches:
                pass
        return self._feeding().call(args, kwargs, look)

    def _lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        program, args, kwargs = self.program_for(args, kwargs)
        return program.lower(args, kwargs)

    def program_for(self, args: Any, kwargs: Any) -> tuple[Program, Any, Any]:
        """The program for these arguments, and the arguments as it takes them."""
        frame = current_frame()
        scope = frame.strategy if frame is not None else None
        return self._programs.find(scope, args, kwargs)

    def collectives(self, *args: Any, **kwargs: Any) -> tuple[CompiledCollective, ...]:
        """List the collectives that the compiled step holds for these arguments.

        They are read from XLA's optimised program, so they are what runs: leaves that were packed
        count once.

        Examples:
            >>> import jax.numpy as jnp
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> @rx.function
            ... def total(x):
            ...     def replica_fn(x):
            ...         return rx.get_replica_context().all_reduce("sum", x)
            ...     return strategy.run(replica_fn, args=(x,))
            >>> [c.kind for c in total.collectives(rx.PerReplica([jnp.ones(3), jnp.ones(3)]))]
            ['all-reduce']
        """
        return collectives_in(self.lower(*args, **kwargs).compile().as_text() or "")

    def requested_collectives(self, *args: Any, **kwargs: Any) -> tuple[Entry, ...]:
        """List the collectives that the replica functions ask for, in program order."""
        entries: tuple[Entry, ...] = self.look_at(Function._entries, args, kwargs)
        return entries

    def _entries(self, *args: Any, **kwargs: Any) -> tuple[Entry, ...]:
        leaves, structure = jax.tree.flatten(stacked((args, kwargs), self._programs.names(args)))
        return self._programs.trace(structure, leaves).entries

    def __repr__(self) -> str:
        return f"<rx.function {self.__name__}>"


@overload
def function(
    fn: Callable[..., Any],
    *,
    donate: int | str | Sequence[int | str] = ...,
    static_argnames: str | Sequence[str] = ...,
    steps_per_execution: int = ...,
) -> Function: ...


@overload
def function(
    fn: None = None,
    *,
    donate: int | str | Sequence[int | str] = ...,
    static_argnames: str | Sequence[str] = ...,
    steps_per_execution: int = ...,
) -> Callable[[Callable[..., Any]], Function]: ...


def function(
    fn: Callable[..., Any] | None = None,
    *,
    donate: int | str | Sequence[int | str] = (),
    static_argnames: str | Sequence[str] = (),
    steps_per_execution: int = 1,
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Compile a step: Python is traced once for each set of shapes, then XLA runs one program.

    Inside, `strategy.run` becomes one mapped program over all replicas. Variables that the
    function reads or writes are found while tracing, given to the program, donated and written
    back. What replicas must agree on is proved before the program runs the first time.

    Works as a decorator, with or without arguments. The function may also be written in functional
    style: `state, loss = step(state, batch)`. State that is proved mirrored comes back as plain
    arrays that go into the next step without a copy.

    Context: cross-replica or outside of every scope. Collective: yes, if the function is.

    Args:
        fn: The function. Its arguments and results are trees of arrays, numbers and per-replica
            values. A whole argument may be the iterator of a distributed dataset: `get_next()`
            gives another batch in each call.
        donate: Positions or names of arguments whose memory the step may reuse; their arrays are
            deleted. What comes back in the place of a donated argument must be proved mirrored.
        static_argnames: Names of parameters that are no arrays; the function is compiled for each
            value of them.
        steps_per_execution: How many steps a call runs, in one program: a loop over so many
            batches, which the function takes from an iterator. The numbers are those of as many
            calls; at the end of the data a call runs the steps that are left. Donated arguments go
            from step to step and come back first; the other results have an entry for each step,
            on axis 0 (of per-replica values: of each component).

    Returns:
        A `Function`: call it like `fn`; see also its `collectives` and `lower`.

    Raises:
        VaryingWriteError: A mirrored variable, or state, is written with a value that may differ
            between replicas. Raised by the call, while it traces.
        VaryingControlFlowError: A collective stands under control flow that varies.
        UnprovenError: The proof cannot be made.
        InvalidArgumentError: `steps_per_execution` is no positive integer; or the call, in which
            all steps would get the same batch or the same state.

    Examples:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable(0.0, name="w")
        >>> @rx.function
        ... def step(x):
        ...     def replica_step(x):
        ...         w.assign_add(rx.get_replica_context().all_reduce("mean", x))
        ...     strategy.run(replica_step, args=(x,))
        >>> step(rx.PerReplica([1.0, 3.0]))
        >>> float(w)
        2.0
    """

    def made(fn: Callable[..., Any]) -> Function:
        return Function(
            fn,
            donate=donate,
            static_argnames=static_argnames,
            steps_per_execution=steps_per_execution,
        )

    return made if fn is None else made(fn)
