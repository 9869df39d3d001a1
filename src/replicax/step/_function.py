"""`rx.function`: a Python function becomes one compiled program over all replicas."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, overload

import jax

from replicax import errors
from replicax.collectives import CompiledCollective, Entry, collectives_in
from replicax.step._arguments import (
    all_parameter_names,
    argument_name,
    bound_to,
    check_hashable,
    parameter_names,
    stack_components,
    static_names,
)
from replicax.step._program import Program, VariablesChanged, check_leaf, signature
from replicax.step._state import (
    check_fed_back,
    check_returned_state,
    donated_names,
    donated_positions,
)
from replicax.step._trace import Traced, trace
from replicax.values import PerReplica, StrategyLike, Variable, current_frame, regroup

_COUNT = itertools.count(1)


class Function:
    """A function that is traced once and runs as one compiled program; see `rx.function`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        donate: int | str | Sequence[int | str] = (),
        static_argnames: str | Sequence[str] = (),
    ) -> None:
        if not callable(fn):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"rx.function takes a function, not {fn!r}.",
                    fix="Write `@rx.function` or `rx.function(fn, donate=...)`.",
                )
            )
        self._fn = fn
        self._id = next(_COUNT)
        functools.update_wrapper(self, fn)
        self.__name__: str = getattr(fn, "__name__", type(fn).__name__)
        self._donate = donated_names(donate, all_parameter_names(fn), self.__name__)
        names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self._static = static_names(names, fn, self.__name__)
        self._variants: dict[tuple[tuple[str, type, Any], ...], Function] = {}
        self._programs: dict[tuple[StrategyLike | None, Any], Program] = {}
        self._plain_arguments: set[str] = set()
        self._methods: dict[int, Function] = {}

    def __get__(self, instance: Any, owner: type | None = None) -> Function | BoundFunction:
        """As a method: a function for each object, of which `self` is a fixed part."""
        if instance is None:
            return self
        key = id(instance)
        if key not in self._methods:
            alive = _reference(instance, lambda _: self._methods.pop(key, None))
            self._methods[key] = Function(
                bound_to(alive, self._fn), donate=self._donate, static_argnames=tuple(self._static)
            )
        return BoundFunction(self._methods[key], instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        """A function of its own, which has not been traced yet."""
        fn = copy.deepcopy(self._fn, memo)
        return Function(fn, donate=self._donate, static_argnames=tuple(self._static))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step.

        Context: cross-replica or outside. Inside another `rx.function` or a replica function, the
        plain Python function is called.
        """
        frame = current_frame()
        strategy = None
        if frame is not None:
            if frame.access is not None or frame.replica is not None or frame.merging is not None:
                return self._fn(*args, **kwargs)
            strategy = frame.strategy
        if self._static:
            variant, args, kwargs = self._specialised(args, kwargs)
            return variant(*args, **kwargs)
        structure: Any
        leaves, structure = jax.tree.flatten((args, kwargs))
        program = self._programs.get((strategy, structure))
        if program is None:
            leaves, structure, program = self._build(strategy, args, kwargs)
        try:
            return program(leaves)
        except VariablesChanged as changed:  # The new program takes over the trace.
            return self._rebuilt(program, changed.traced, strategy, leaves)(leaves)
        except TypeError:
            self._check_arguments(*structure.unflatten(leaves))  # Perhaps it was no array.
            raise

    # -- building programs ------------------------------------------------------

    def trace_program(self, structure: Any, leaves: Sequence[Any]) -> Traced:
        """Trace the function and check what the trace returns."""
        traced = trace(self._fn, structure, leaves, function_id=self._id)
        args, _ = structure.unflatten(leaves)
        check_returned_state(args, traced.form, self._donate, self._names(args), self.__name__)
        return traced

    def name_of_leaf(self, structure: Any, position: int) -> str:
        """How messages call one of the argument leaves."""
        args, kwargs = structure.unflatten(range(structure.num_leaves))
        with_paths, _ = jax.tree_util.tree_flatten_with_path((args, kwargs))
        return argument_name(with_paths[position][0], self._names(args))

    def _names(self, args: Sequence[Any]) -> list[str]:
        return parameter_names(self._fn, len(args))

    def _build(
        self, strategy: StrategyLike | None, args: Any, kwargs: Any
    ) -> tuple[list[Any], Any, Program]:
        """Make the program for a structure of arguments that was not seen before."""
        args, kwargs = _stacked((args, kwargs), self._names(args))
        leaves, structure = jax.tree.flatten((args, kwargs))
        program = self._programs.get((strategy, structure))
        if program is not None:  # The call had components, which are stacked anew each time.
            return leaves, structure, program
        self._check_arguments(args, kwargs)
        traced = self.trace_program(structure, leaves)
        program = self._program(traced, structure, args, kwargs, leaves)
        program.traces[signature(leaves)] = traced
        self._programs[strategy, structure] = program
        if traced.strategy is not None:
            leaves = program.placed(leaves)
        return leaves, structure, program

    def _program(
        self, traced: Traced, structure: Any, args: Any, kwargs: Any, leaves: Sequence[Any]
    ) -> Program:
        return Program(
            self,
            structure,
            written=traced.written,
            read=[v for v in traced.variables if v in traced.used - set(traced.written)],
            donated=donated_positions(args, kwargs, self._donate, self._names(args)),
            per_replica=_per_replica_positions((args, kwargs)),
            count=len(leaves),
            strategy=traced.strategy,
        )

    def _rebuilt(
        self, old: Program, traced: Traced, strategy: StrategyLike | None, leaves: Sequence[Any]
    ) -> Program:
        """Make a program that serves the variables of old and new traces."""
        written = [*old.written, *(v for v in traced.written if v not in old.written)]
        used = {*old.read, *old.written, *traced.used}
        program = Program(
            self,
            old.structure,
            written=written,
            read=[v for v in traced.variables if v in used - set(written)],
            donated=old.donated,
            per_replica=old.per_replica,
            count=len(leaves),
            strategy=traced.strategy,
        )
        program.traces.update(old.traces)
        self._programs[strategy, old.structure] = program
        return program

    def _check_arguments(self, args: Any, kwargs: Any) -> None:
        names = self._names(args)
        with_paths, _ = jax.tree_util.tree_flatten_with_path(
            (args, kwargs), is_leaf=lambda value: isinstance(value, (PerReplica, Variable))
        )
        for path, value in with_paths:
            name = argument_name(path, names)
            if isinstance(value, PerReplica):
                check_fed_back(value, name, self._id, self._plain_arguments, self.__name__)
            else:
                check_leaf(value, name)
        self._plain_arguments.update(
            argument_name(path, names)
            for path, value in with_paths
            if not isinstance(value, PerReplica)
        )

    def _specialised(self, args: Any, kwargs: Any) -> tuple[Function, tuple[Any, ...], Any]:
        """The function for these values of the static arguments, and the other arguments."""
        names = self._names(args)
        named = dict(zip(names, args, strict=True))
        static = {k: v for k, v in {**named, **kwargs}.items() if k in self._static}
        # With the types, because 1 == 1.0 == True.
        key = tuple((name, type(static[name]), static[name]) for name in sorted(static))
        check_hashable(static, self.__name__)
        if key not in self._variants:
            self._variants[key] = Function(_without(self._fn, static), donate=self._donate)
        return (
            self._variants[key],
            tuple(a for name, a in zip(names, args, strict=True) if name not in self._static),
            {k: v for k, v in kwargs.items() if k not in self._static},
        )

    # -- looking at it --------------------------------------------------------------

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower the step for these arguments, without running it.

        Returns:
            JAX's own object: `.as_text()`, `.compile().as_text()`, `.compile().cost_analysis()`.
        """
        if self._static:
            variant, args, kwargs = self._specialised(args, kwargs)
            return variant.lower(*args, **kwargs)
        frame = current_frame()
        strategy = frame.strategy if frame is not None else None
        leaves, structure = jax.tree.flatten((args, kwargs))
        program = self._programs.get((strategy, structure))
        if program is None:
            leaves, structure, program = self._build(strategy, args, kwargs)
        return program.lower(leaves)

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
        if self._static:
            variant, args, kwargs = self._specialised(args, kwargs)
            return variant.requested_collectives(*args, **kwargs)
        leaves, structure = jax.tree.flatten(_stacked((args, kwargs), self._names(args)))
        return self.trace_program(structure, leaves).entries

    def __repr__(self) -> str:
        return f"<rx.function {self.__name__}>"


def _without(fn: Callable[..., Any], static: dict[str, Any]) -> Callable[..., Any]:
    """`fn` with the values of some parameters filled in, wherever they stand."""
    whole = inspect.signature(fn)
    others = [p for p in whole.parameters.values() if p.name not in static]
    signature = whole.replace(parameters=others)

    @functools.wraps(fn)
    def rest(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments | static
        in_order = {name: given[name] for name in whole.parameters if name in given}
        bound = inspect.BoundArguments(whole, in_order)
        return fn(*bound.args, **bound.kwargs)

    rest.__signature__ = signature  # type: ignore[attr-defined]
    return rest


class BoundFunction:
    """An `rx.function` that is a method, with its object."""

    def __init__(self, function: Function, instance: Any) -> None:
        self._function = function
        self.__self__ = instance
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __repr__(self) -> str:
        return repr(self._function)


def _reference(instance: Any, at_end: Callable[[Any], Any]) -> Callable[[], Any]:
    """A reference that does not keep the object alive, where there can be one."""
    try:
        return weakref.ref(instance, at_end)
    except TypeError:  # Its class has slots.
        return lambda: instance


def _stacked(tree: Any, names: Sequence[str]) -> Any:
    """Stack per-replica values of `(args, kwargs)` that are held as components."""

    def stack(path: Any, value: Any) -> Any:
        if not isinstance(value, PerReplica) or value.stacked is not None:
            return value
        label = f"argument `{argument_name(path, names)}`"
        return regroup(
            value.values, lambda rows: PerReplica.from_stacked(stack_components(rows, label))
        )

    return jax.tree_util.tree_map_with_path(
        stack, tree, is_leaf=lambda value: isinstance(value, PerReplica)
    )


def _per_replica_positions(tree: Any) -> frozenset[int]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda value: isinstance(value, PerReplica))
    positions: list[int] = []
    start = 0
    for leaf in leaves:
        width = len(jax.tree.leaves(leaf))
        if isinstance(leaf, PerReplica):
            positions.extend(range(start, start + width))
        start += width
    return frozenset(positions)


@overload
def function(
    fn: Callable[..., Any],
    *,
    donate: int | str | Sequence[int | str] = ...,
    static_argnames: str | Sequence[str] = ...,
) -> Function: ...


@overload
def function(
    fn: None = None,
    *,
    donate: int | str | Sequence[int | str] = ...,
    static_argnames: str | Sequence[str] = ...,
) -> Callable[[Callable[..., Any]], Function]: ...


def function(
    fn: Callable[..., Any] | None = None,
    *,
    donate: int | str | Sequence[int | str] = (),
    static_argnames: str | Sequence[str] = (),
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
            values.
        donate: Positions or names of arguments whose memory the step may reuse; their arrays are
            deleted. What comes back in the place of a donated argument must be proved mirrored.
        static_argnames: Names of parameters that are no arrays; the function is compiled for each
            value of them.

    Returns:
        A `Function`: call it like `fn`; see also its `collectives` and `lower`.

    Raises:
        VaryingWriteError: A mirrored variable, or state, is written with a value that may differ
            between replicas. Raised by the call, while it traces.
        VaryingControlFlowError: A collective stands under control flow that varies.
        UnprovenError: The proof cannot be made.

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
    if fn is None:
        return lambda fn: Function(fn, donate=donate, static_argnames=static_argnames)
    return Function(fn, donate=donate, static_argnames=static_argnames)
