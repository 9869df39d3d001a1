"""One compiled program of an `rx.function`, and the path of a step through it.

The path of a step is short: collect the variables' arrays, call the jitted function on flat
lists, write the new arrays back. Everything else happens when JAX has to trace anew.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.step._access import out_of_reach
from replicax.step._trace import Traced
from replicax.values import ReplicaMesh, StrategyLike, Variable
from replicax.values._lending import COUNTER, keep_lent_arrays
from replicax.values._tracing import is_staged, outermost_level

if TYPE_CHECKING:
    from replicax.step._function import Function

IN_FLIGHT_ON_CPU = 8
"""How many steps may be under way when several replicas share this process's CPU.

XLA's collectives on the CPU block a pool thread for each waiting device. With hundreds of steps
queued, threads of one step wait for threads that a later step holds, and XLA aborts the process
after 40 s. A few steps keep the devices busy as well. Steps wait by half this number at a time,
because each wait costs Python as much time as several leaves do.
"""


_ONE_AT_A_TIME = threading.RLock()


class VariablesChanged(Exception):  # noqa: N818 - a signal, caught by the function
    """A new trace uses other variables than the program was built for."""

    def __init__(self, traced: Traced) -> None:
        super().__init__("the program must be built anew")
        self.traced = traced


class Program:
    """A jitted function for one structure of arguments.

    Args:
        function: The function that it belongs to, which traces.
        structure: Structure of `(args, kwargs)`.
        written: Variables that it replaces; their arrays are donated.
        read: Variables that it only reads.
        donated: Positions of argument leaves that are donated.
        per_replica: Positions of argument leaves that are stacked, one row a replica.
        count: Number of argument leaves.
        strategy: The strategy whose replicas it runs on, or None.
    """

    def __init__(
        self,
        function: Function,
        structure: Any,
        *,
        written: Sequence[Variable],
        read: Sequence[Variable],
        donated: Sequence[int],
        per_replica: frozenset[int],
        count: int,
        strategy: StrategyLike | None,
    ) -> None:
        self.function, self.structure = function, structure
        self.written, self.read, self.strategy = tuple(written), tuple(read), strategy
        self.donated, positions = tuple(donated), set(donated)
        self._donates = [i in positions for i in range(count)]
        self._keeps = [not donates for donates in self._donates]
        self.kept = tuple(compress(range(count), self._keeps))
        self.per_replica = per_replica
        self.traces: dict[Any, Traced] = {}
        self._tracing_failed = False
        self._ends = _ends_of_arguments(structure)
        self._mesh: ReplicaMesh | None = strategy.replica_mesh if strategy is not None else None
        self._throttled = self._mesh is not None and self._mesh.is_cpu_simulation
        self._steps_since_wait = 0
        self._awaited_next: jax.Array | None = None
        self._lendings_seen = -1
        self._jitted = self._jit()

    # -- the path of a step ---------------------------------------------------

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Run one step.

        Raises:
            VariablesChanged: A new trace needs other variables; nothing was run.
        """
        self._check_alive(leaves)
        # Two threads would give away the same arrays, and start collectives in different orders.
        with _ONE_AT_A_TIME:
            if self._lendings_seen != COUNTER.lendings:
                keep_lent_arrays(self.written)
                self._lendings_seen = COUNTER.lendings
            try:
                new, result, done = self._dispatch(leaves)
            except ValueError:
                # Some argument is committed to other devices; unless the error is the user's own.
                failed, self._tracing_failed = self._tracing_failed, False
                if failed or self._mesh is None:
                    raise
                new, result, done = self._dispatch(self.placed(leaves))
            self._check_outermost(new, result, done)
            for variable, value in zip(self.written, new, strict=True):
                variable._value = value
        if self._throttled:
            self._throttle(done)
        return result

    def _check_outermost(self, new: Sequence[Any], result: Any, done: Any) -> None:
        """Refuse variables under `jax.jit`, which would keep their values as constants."""
        witness = new[0] if new else done
        if witness is None and self.read:
            witness = next(iter(jax.tree.leaves(result)), None)
        if witness is None or _is_concrete(type(witness)):
            return
        if new or (self.read and is_staged(outermost_level())):
            raise out_of_reach((*self.written, *self.read)[0])

    def _dispatch(self, leaves: Sequence[Any]) -> Any:
        kept = leaves
        donated: Sequence[Any] = ()
        if self.donated:
            donated = list(compress(leaves, self._donates))
            kept = list(compress(leaves, self._keeps))
        return self._jitted(
            [variable._value for variable in self.written],
            donated,
            [variable._value for variable in self.read],
            kept,
        )

    def _check_alive(self, leaves: Sequence[Any]) -> None:
        """Refuse arrays that an earlier step was given to reuse: some releases of jax crash.

        The first and the last leaf of each argument tell, because trees are donated whole.
        """
        for position in self._ends:
            leaf = leaves[position]
            if _is_concrete(type(leaf)) and leaf.is_deleted():
                name = self.function.name_of_leaf(self.structure, position)
                raise errors.InvalidArgumentError(
                    errors.describe(
                        f"Argument `{name}` of `{self.function.__name__}` is an array that has "
                        "been deleted.",
                        why="It was given to an earlier step as a donated argument, which reused "
                        "its memory.",
                        fix="Go on with what that step returned: `state, out = step(state, "
                        "batch)`; or keep a copy before: `jnp.copy(x)`.",
                    )
                )

    def _throttle(self, done: jax.Array) -> None:
        """Keep at most `IN_FLIGHT_ON_CPU` steps under way."""
        self._steps_since_wait += 1
        if self._steps_since_wait * 2 < IN_FLIGHT_ON_CPU:
            return
        if self._awaited_next is not None:
            self._awaited_next.block_until_ready()
        self._awaited_next, self._steps_since_wait = done, 0

    # -- building ---------------------------------------------------------------

    def _jit(self) -> Any:
        if self._mesh is None:
            return jax.jit(self._flat, donate_argnums=(0, 1))
        mesh = self._mesh
        layouts = [
            mesh.stacked if i in self.per_replica else mesh.mirrored
            for i in range(len(self.donated) + len(self.kept))
        ]
        shardings: tuple[Any, ...] = (
            [mesh.mirrored] * len(self.written),
            [layouts[i] for i in self.donated],
            [mesh.mirrored] * len(self.read),
            [layouts[i] for i in self.kept],
        )
        if not self.donated:
            shardings = (shardings[0], (), *shardings[2:])
        return jax.jit(self._flat, donate_argnums=(0, 1), in_shardings=shardings)

    def _flat(
        self,
        written: Sequence[Any],
        donated: Sequence[Any],
        read: Sequence[Any],
        kept: Sequence[Any],
    ) -> tuple[list[Any], Any, Any]:
        """What JAX traces: once for each set of shapes."""
        leaves: list[Any] = [None] * (len(donated) + len(kept))
        for position, leaf in zip(self.donated, donated, strict=True):
            leaves[position] = leaf
        for position, leaf in zip(self.kept, kept, strict=True):
            leaves[position] = leaf
        traced = self._trace(leaves)
        values = dict(zip(self.written + self.read, [*written, *read], strict=True))
        new, result = traced.evaluate(values, leaves)
        by_variable = dict(zip(traced.written, new, strict=True))
        outputs = [by_variable.get(v, values[v]) for v in self.written]
        if self._mesh is not None:
            outputs = [jax.lax.with_sharding_constraint(x, self._mesh.mirrored) for x in outputs]
        # An output that no later step donates: it tells when this step is done.
        done = jnp.zeros((), jnp.bool_) if self._throttled else None
        return outputs, result, done

    def _trace(self, leaves: Sequence[Any]) -> Traced:
        key = signature(leaves)
        if key not in self.traces:
            try:
                self.traces[key] = self.function.trace_program(self.structure, leaves)
            except ValueError:
                self._tracing_failed = True
                raise
        traced = self.traces[key]
        if not (set(traced.written) <= set(self.written)) or not (
            traced.used <= {*self.written, *self.read}
        ):
            raise VariablesChanged(traced)
        return traced

    def placed(self, leaves: Sequence[Any]) -> list[Any]:
        """Move leaves to where the program wants them."""
        if self._mesh is None:
            return list(leaves)
        mesh = self._mesh
        return [
            jax.device_put(leaf, mesh.stacked if i in self.per_replica else mesh.mirrored)
            for i, leaf in enumerate(leaves)
        ]

    def lower(self, leaves: Sequence[Any]) -> jax.stages.Lowered:
        """Lower for inspection, as `jax.stages.Lowered`."""
        values = [v._value for v in self.written], [v._value for v in self.read]
        donated = [leaves[i] for i in self.donated]
        kept = [leaves[i] for i in self.kept]
        lowered: jax.stages.Lowered = self._jitted.lower(values[0], donated or (), values[1], kept)
        return lowered


# Whether objects of a type are arrays that exist: no tracers, and nothing of numpy. Kept for each
# type, because `isinstance(x, jax.Array)` runs Python code, which is too slow for each step.
_is_concrete: Callable[[type], bool] = functools.cache(lambda kind: issubclass(kind, jax.Array))


def _ends_of_arguments(structure: Any) -> tuple[int, ...]:
    """Positions of the first and last leaf of each argument in the leaves of `(args, kwargs)`."""
    ends: list[int] = []
    start = 0
    for part in structure.children():
        for argument in part.children():
            if argument.num_leaves:
                ends += [start, start + argument.num_leaves - 1]
                start += argument.num_leaves
    return tuple(dict.fromkeys(ends))


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
