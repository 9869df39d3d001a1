"""One compiled program of an `rx.function`, and the path of a step through it.

The path of a step is short: collect the variables' arrays, call the jitted function, write the
new arrays back. JAX's own cache tells whether the arguments have the structure and shapes of an
earlier call. Everything else happens when it has to trace anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.cluster import ORDER
from replicax.collectives import IN_FLIGHT, TURNS
from replicax.recording import RECORDER
from replicax.step._access import out_of_reach
from replicax.step._announcement import compiling
from replicax.step._callbacks import Callbacks, failure_of_any_worker, run_to_the_end
from replicax.step._compat import forget_calls
from replicax.step._first_leaves import (
    FirstLeaf,
    Way,
    first_leaves,
    kinds_of,
    way_to_first_leaf,
)
from replicax.step._one_at_a_time import ONE_AT_A_TIME
from replicax.step._recorded import note_trace, subject_of_step
from replicax.step._short_path import NOT_THERE, Path, short_path
from replicax.step._together import starting
from replicax.step._trace import Traced
from replicax.step._workers import compare_program
from replicax.values import PerReplica, ReplicaMesh, StrategyLike, Variable
from replicax.values._cells import shared_cell
from replicax.values._lending import keep_lent_arrays
from replicax.values._tracing import is_concrete, is_staged, outermost_level
from replicax.values._workers import check_count

if TYPE_CHECKING:
    from replicax.step._function import Function

# Kinds of arguments that some function donates: plain trees (False), per-replica values (True).
# Other kinds cannot have been deleted here.
_DONATED_KINDS: set[bool] = set()


class VariablesChanged(Exception):  # noqa: N818 - a signal, caught by the function
    """A new trace uses other variables, or callbacks, than the program was built for."""

    def __init__(self, traced: Traced) -> None:
        super().__init__("the program must be built anew")
        self.traced = traced


class NotCompared(Exception):  # noqa: N818 - a signal, caught by the function
    """A new trace has not been compared with those of the other workers."""

    def __init__(self, key: Any) -> None:
        super().__init__("the workers must compare their programs first")
        self.key = key


class OtherObjectsError(LookupError):
    """An object is built otherwise than when the program was traced; caught by the function."""


class Program:
    """A jitted function for one structure of arguments.

    Args:
        function: The function that it belongs to, which traces.
        args: Arguments of this structure.
        kwargs: Named arguments of this structure.
        written: Variables that it replaces; their arrays are donated.
        read: Variables that it only reads.
        donated: Positions and names of the arguments that are donated.
        scope: The strategy in whose scope the function is called, or None.
        strategy: The strategy whose replicas it runs on, or None.
        callbacks: The host callbacks of the traces that it is for.
        objects: Objects of model libraries whose changes ask for another trace, beside those
            whose variables it reads or writes.
    """

    def __init__(
        self,
        function: Function,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        *,
        written: Sequence[Variable],
        read: Sequence[Variable],
        donated: Sequence[int | str],
        scope: StrategyLike | None,
        strategy: StrategyLike | None,
        callbacks: Sequence[Callbacks] = (),
        objects: Sequence[Any] = (),
    ) -> None:
        self.function, self.scope, self.strategy = function, scope, strategy
        self.written, self.read, self.donated = tuple(written), tuple(read), tuple(donated)
        self.traces: dict[Any, Traced] = {}
        self.failed_in_users_code = False
        self.callbacks = tuple(callbacks)
        # What a step computed from the result of a callback that failed must not stay.
        self._keeps_state = any(one.have_results for one in callbacks)
        self._mesh: ReplicaMesh | None = strategy.replica_mesh if strategy is not None else None
        self._spans_processes = self._mesh is not None and self._mesh.spans_processes
        self._donated_names = tuple(name for name in self.donated if isinstance(name, str))
        self._first_leaves = first_leaves(args, kwargs, only=self.donated)
        self._watched: tuple[FirstLeaf, ...] = ()
        self._kinds_watched = -1
        self._way_to_output: Way = ()
        self._takes_turns = self._mesh is not None and self._mesh.is_cpu_simulation
        self.subject = subject_of_step(function.__name__, self._mesh, is_awaited=bool(callbacks))
        self.changes_seen = -1
        self._moves = any(variable._lies_elsewhere for variable in self.written + self.read)
        with ONE_AT_A_TIME:
            self._cell = shared_cell(self.written)
        owners = [v._owner for v in self.written + self.read if v._owner is not None]
        self.objects = tuple(dict.fromkeys([*owners, *objects]))
        self._guards = tuple(owner.guard() for owner in self.objects)
        self._has_more = bool(self.read or kwargs)
        self.num_args = len(args)
        self._jitted = self._jit(args, kwargs)
        self._call = self._with_callbacks(self._jitted)
        self._most = IN_FLIGHT
        self._compared: dict[Any, int] = {}
        self._is_looked_at = False
        if self._spans_processes:  # A full queue blocks where no failure of another is heard of.
            self._most = IN_FLIGHT // 2
        kinds = kinds_of(args, kwargs, self.donated)
        if not kinds <= _DONATED_KINDS:
            _DONATED_KINDS.update(kinds)
            TURNS.changes += 1  # All programs have more to watch.
        self._watch()

    # -- the path of a step ---------------------------------------------------

    def run(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:  # noqa: C901, PLR0912, PLR0915 - see below
        """Run one step.

        This is long for a function because each Python call costs about a microsecond when the
        caches are cold, as they are between the steps of a training loop.

        Raises:
            VariablesChanged: A new trace needs other variables; nothing was run.
            NotCompared: The workers must compare a new trace first; nothing was run.
            ValueError: (also AttributeError, LookupError, TypeError) The arguments have another
                structure or lie elsewhere, and nothing was run; or, if `failed_in_users_code`,
                it is what the user's code raised.
        """
        if self._guards and not self.fits():
            raise OtherObjectsError
        if self._kinds_watched != len(_DONATED_KINDS):
            self._watch()
        first = None
        for place in self._watched:
            leaf: Any = kwargs if place.is_named else args
            for look_up in place.way:
                leaf = look_up(leaf)
            if is_concrete(type(leaf)):
                if leaf.is_deleted():
                    raise _deleted(self.function, place.name(self.function, args))
                first = leaf if first is None else first
        named: Any = {}
        if self._donated_names:
            named, kwargs = self._split(kwargs)
        # Two threads would give away the same arrays, and start collectives in different orders.
        with ONE_AT_A_TIME:
            if self.changes_seen != TURNS.changes:
                self.changes_seen = TURNS.changes if not RECORDER.is_traced else -1
                keep_lent_arrays(self.written)
            cell = self._cell
            together = cell.arrays
            written = self._collect() if together is None else together
            if self._takes_turns:
                given = written[0] if written else first if self.donated else None
                if given is None or given is not TURNS.output or TURNS.in_a_row >= self._most:
                    TURNS.settle()
            read = []
            if self._moves:
                read = [variable._for_reading() for variable in self.read]
            elif self.read:
                read = [variable._value for variable in self.read]
            entry = [self.subject, monotonic_ns(), 0, None, None]
            RECORDER.append(entry)
            if self._has_more:
                new, result, output = self._call(written, named, read, kwargs, *args)
            elif kwargs:
                raise TypeError("named arguments, which this program does not take")
            elif written:
                new, result, output = self._call(written, *args)
            else:
                new, result, output = self._call(*args)
            entry[3] = self.subject.run()
            if self.subject.place is not None:
                entry[4] = self.subject.place()
            entry[2] = monotonic_ns()
            if new:
                output = new[0]
                if not is_concrete(type(output)):
                    raise out_of_reach(self.written[0])
                if together is None:
                    self._hand_out(new)
                else:
                    cell.arrays = new
            elif read or self._takes_turns:
                try:
                    if output is None:
                        output = result
                        for look_up in self._way_to_output:
                            output = look_up(output)
                except NOT_THERE:  # A trace whose result has another structure.
                    output = None
                if not is_concrete(type(output)):
                    output = self._find_output(result)
            if self._takes_turns:
                TURNS.output = output
                TURNS.in_a_row += 1
            if RECORDER.wait is not None:
                RECORDER.wait(entry, (new, result))
        return result

    def fits(self) -> bool:
        """Whether the objects that it uses are built as they were when it was traced."""
        for holds in self._guards:  # noqa: SIM110 - `all` of a generator takes a microsecond
            if not holds():
                return False
        return True

    def _watch(self) -> None:
        """Look, in each call, at one leaf of each argument that may have been donated before."""
        self._kinds_watched = len(_DONATED_KINDS)
        self._watched = tuple(
            place for kind in _DONATED_KINDS for place in self._first_leaves[kind]
        )
        self.step: Path = short_path(self, ONE_AT_A_TIME)

    def _collect(self) -> list[Any]:
        return [variable._for_program() for variable in self.written]

    def _hand_out(self, new: list[Any]) -> None:
        for variable, state in zip(self.written, new, strict=True):
            variable._from_program(state)

    def _split(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Part named arguments into those that are donated and the others."""
        named = {name: kwargs[name] for name in self._donated_names}
        return named, {name: value for name, value in kwargs.items() if name not in named}

    def _with_callbacks(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A step with host callbacks ends before anybody sees a result of it."""
        if not self.callbacks:
            return call

        def watched(*args: Any) -> Any:
            outputs, failure = run_to_the_end(call, args, self.callbacks)
            if self._keeps_state and self._spans_processes:
                failure = failure_of_any_worker(failure, self.function.__name__)
            if failure is None:
                return outputs
            if outputs is not None and not self._keeps_state:  # Of the step itself, all is right.
                self._keep(outputs[0])
            self.failed_in_users_code = True
            raise failure

        return watched

    def _keep(self, new: list[Any]) -> None:
        if self._cell.arrays is not None:
            self._cell.arrays = new
        else:
            self._hand_out(new)

    def _find_output(self, result: Any) -> Any:
        """The first array of the result, or None; the next step finds it where this one did.

        Raises:
            ContextError: The step runs under `jax.jit`, which would keep what it reads from
                variables as constants.
        """
        self._way_to_output = way_to_first_leaf(result)
        leaves = jax.tree.leaves(result)
        if not leaves or is_concrete(type(leaves[0])):
            return leaves[0] if leaves else None
        if self.read and is_staged(outermost_level()):
            raise out_of_reach(self.read[0])
        return None

    # -- building ---------------------------------------------------------------

    def _jit(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        count = len(self._parts([], {}, [], {}, ()))
        positions = [i for i in (0, 1) if i < count]  # `written` and `named`
        positions += [count + place for place in self.donated if isinstance(place, int)]
        positions = [] if self._keeps_state else positions
        body = functools.partial(self._body)  # Equal functions would share their traces.
        body.__name__ = self.function.__name__  # type: ignore[attr-defined] # for jax's own reports
        if self._mesh is None:
            return jax.jit(body, donate_argnums=positions)
        args, kwargs = layouts(self._mesh, (tuple(args), kwargs))
        named, kwargs = self._split(kwargs)
        written = [variable._sharding for variable in self.written]
        read = [variable._sharding for variable in self.read]
        shardings = self._parts(written, named, read, kwargs, args)
        return jax.jit(body, donate_argnums=positions, in_shardings=shardings)

    def _parts(
        self,
        written: list[Any],
        named: dict[str, Any],
        read: list[Any],
        kwargs: dict[str, Any],
        args: Sequence[Any],
    ) -> tuple[Any, ...]:
        """What the jitted function is given, as in `run`: each empty part would cost time."""
        if self._has_more:
            return (written, named, read, kwargs, *args)
        return (written, *args) if self.written else tuple(args)

    def _body(self, *parts: Any) -> tuple[list[Any], Any, Any]:
        """What JAX traces: once for each set of shapes."""
        written: Sequence[Any] = []
        named, read, kwargs, args = {}, [], {}, parts
        if self._has_more:
            written, named, read, kwargs, args = *parts[:4], parts[4:]
        elif self.written:
            written, args = parts[0], parts[1:]
        leaves, structure = jax.tree.flatten((args, {**kwargs, **named}))
        traced = self._trace(structure, leaves)
        compiling(self, traced)
        values = dict(zip(self.written + self.read, [*written, *read], strict=True))
        new, result = traced.evaluate(values, leaves)
        by_variable = dict(zip(traced.written, new, strict=True))
        outputs = [by_variable.get(v, values[v]) for v in self.written]
        if self._mesh is not None:
            outputs = [
                jax.lax.with_sharding_constraint(x, variable._sharding)
                for x, variable in zip(outputs, self.written, strict=True)
            ]
        # What tells when the program has ended, where no new state does.
        has_state = outputs or self.donated
        done = jnp.zeros((), jnp.bool_) if self._takes_turns and not has_state else None
        return outputs, result, done

    def _trace(self, structure: Any, leaves: Sequence[Any]) -> Traced:
        key = (structure, signature(leaves))
        if self._spans_processes and key not in self._compared:
            ORDER.entering = 0  # It does not start now, and this may take longer than elsewhere.
        if key not in self.traces:
            self.failed_in_users_code = True
            self.keep(key, self.function._programs.trace(structure, leaves))
            self.failed_in_users_code = False
        traced = self.traces[key]
        is_watched = traced.callbacks in self.callbacks or not traced.callbacks.are_there
        if not (is_watched and set(traced.written) <= set(self.written)) or not (
            traced.used <= {*self.written, *self.read}
        ):
            raise VariablesChanged(traced)
        if self._spans_processes and key not in self._compared and not self._is_looked_at:
            raise NotCompared(key)
        return traced

    def keep(self, key: Any, traced: Traced) -> None:
        """Keep a trace, by structure and signature."""
        self.traces[key] = traced
        note_trace(self.subject, traced.entries)

    # -- several processes ------------------------------------------------------

    def compare(self, new: NotCompared, args: Any, kwargs: Any, given: Any) -> None:
        """Compare a new trace with those of the other workers. Collective.

        Args:
            new: What `run` has raised.
            args: The arguments, placed.
            kwargs: The named arguments, placed.
            given: Both as they came.

        Raises:
            CollectiveMismatchError: They are not the same. The program must not be used again: JAX
                keeps its trace.
        """
        names = self.function._programs.names(args)
        entry = compare_program(self, self.traces[new.key], args, kwargs, given, names)
        self._compared[new.key] = entry
        forget_calls(self._jitted)  # `NotCompared` ended one while it was traced.
        name, of_parts = self.function.__name__, self._of_parts
        call = starting(self._jitted, name, self._compared, args, kwargs, names, of_parts)
        self._call = self._with_callbacks(call)

    def _of_parts(self, of_arguments: Callable[..., Any]) -> Callable[..., Any]:
        """A function of `(args, kwargs)` as one of what the jitted function is given."""
        count = len(self._parts([], {}, [], {}, ()))
        if not self._has_more:
            return lambda *parts: of_arguments(parts[count:], {})
        return lambda *parts: of_arguments(parts[count:], {**parts[3], **parts[1]})

    def lowered(self, args: Sequence[Any], kwargs: dict[str, Any]) -> jax.stages.Lowered:
        """Lower what is about to run, for all workers to compare."""
        return self._lowered(self._jitted, args, kwargs)

    def placed(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Move arguments to where the program wants them."""
        if self._mesh is None:
            return args, kwargs
        if self._mesh.spans_processes:
            return self._placed_over_processes((args, kwargs))
        return jax.device_put((args, kwargs), layouts(self._mesh, (args, kwargs)))

    def _placed_over_processes(self, tree: Any) -> Any:
        """Put per-replica values on the replicas; JAX itself places what is equal on all."""
        strategy: Any = self.strategy

        def place(value: Any) -> Any:
            if not isinstance(value, PerReplica):
                return value
            what = f"An argument of `{self.function.__name__}` is {value!r}"
            check_count(strategy, value, what)
            return jax.tree.map(strategy.replica_mesh.place_own_rows, value)

        return jax.tree.map(place, tree, is_leaf=lambda value: isinstance(value, PerReplica))

    def lower(self, args: Sequence[Any], kwargs: dict[str, Any]) -> jax.stages.Lowered:
        """Lower for inspection, as `jax.stages.Lowered`."""
        # A trace that JAX keeps is not compared with those of other workers any more.
        jitted = self._jit(args, kwargs) if self._spans_processes else self._jitted
        return self._lowered(jitted, args, kwargs)

    def _lowered(
        self, jitted: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> jax.stages.Lowered:
        named, kwargs = self._split(kwargs)
        with ONE_AT_A_TIME:
            written = self._collect()
            read = [variable._for_program() for variable in self.read]
            parts = self._parts(written, named, read, kwargs, args)
            self._is_looked_at = True
            try:
                lowered: jax.stages.Lowered = jitted.lower(*parts)
            finally:
                self._is_looked_at = False
        return lowered


def layouts(mesh: ReplicaMesh, tree: Any) -> Any:
    """The sharding of each leaf of a tree of arguments."""

    def layout(value: Any) -> Any:
        if isinstance(value, PerReplica):
            return jax.tree.map(lambda _: mesh.stacked, value)
        return mesh.mirrored

    return jax.tree.map(layout, tree, is_leaf=lambda value: isinstance(value, PerReplica))


def _deleted(function: Function, name: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(
        errors.describe(
            f"Argument `{name}` of `{function.__name__}` is an array that has been deleted.",
            why="It was given to an earlier step as a donated argument, which reused its memory.",
            fix="Go on with what that step returned: `state, out = step(state, batch)`; or keep a "
            "copy before: `jnp.copy(x)`.",
        )
    )


def signature(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """What a trace depends on: shape, dtype and weak type of each leaf."""
    shapes = jax.eval_shape(lambda *leaves: leaves, *leaves)
    return tuple((x.shape, x.dtype, x.weak_type) for x in shapes)


def check_leaf(value: Any, name: str) -> None:
    """Check that an argument leaf of an `rx.function` is an array or number.

    Raises:
        ArgumentTypeError: It is something else.
    """
    if isinstance(value, (bool, int, float, complex)) or hasattr(value, "dtype"):
        return
    raise errors.ArgumentTypeError(
        errors.describe(
            f"Argument `{name}` of an rx.function is {value!r}, a {type(value).__name__}.",
            why="Arguments are arrays and numbers, in any structure; the compiled step is used for "
            "all values of them.",
            fix="Use the object from outside (a global or a closure), or name the parameter in "
            "`rx.function(static_argnames=...)` to compile one step for each value of it.",
        )
    )
