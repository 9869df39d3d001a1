"""The replica function as a function of flat lists of local arrays, to be traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from replicax import errors
from replicax.collectives import Entry
from replicax.step._arguments import Leaf
from replicax.step._bound_objects import bound
from replicax.step._compiled_context import CompiledReplicaContext, ReplicaVariables
from replicax.step._padding import Padding
from replicax.step._results import flatten_result
from replicax.step._rows import LocalRows
from replicax.step._unused_keys import without_unused_keys
from replicax.values import AXIS, Frame, StrategyLike, Variable, VariableAccess, entered


@dataclass
class Outcome:
    """What tracing the replica function brought, besides its jaxpr."""

    structure: Any = None
    template: tuple[Any, ...] = ()  # result leaves; arrays are None
    paths: tuple[str, ...] = ()  # of the result's array leaves
    written: dict[Variable, errors.CallSite | None] = field(default_factory=dict)
    used_copies: frozenset[Variable] = frozenset()
    mask_was_used: bool = False
    entries: tuple[Entry, ...] = ()
    chooses_packs: bool = False  # a collective says what is to travel together


class Body:
    """The replica function on flat lists of local arrays.

    Args:
        strategy: The strategy.
        fn: The replica function.
        leaves: The leaves of its arguments.
        structure: Their structure.
        padding: The padding of the arguments, or None.
        surrounding: Variables as they are seen at the place of the call.
        on_read: The sync-on-read variables within reach; their copies are the last arrays.
        updating: Whether the function is that of `extended.update`.
    """

    def __init__(
        self,
        strategy: StrategyLike,
        fn: Callable[..., Any],
        leaves: Sequence[Leaf],
        structure: Any,
        padding: Padding | None,
        surrounding: VariableAccess,
        on_read: Sequence[Variable] = (),
        *,
        updating: bool = False,
    ) -> None:
        self.strategy, self.fn, self.leaves, self.structure = strategy, fn, leaves, structure
        self.padding, self.surrounding = padding, surrounding
        self.on_read, self.updating = tuple(on_read), updating
        self.outcome = Outcome()

    def __call__(self, arrays: Sequence[jax.Array], real_rows: jax.Array | None) -> list[Any]:
        """Run the function on tracers; the outputs are result arrays, then written variables."""
        remaining = iter(arrays)
        inputs = [
            next(remaining) if leaf.is_array or leaf.is_per_replica else leaf.value
            for leaf in self.leaves
        ]
        capacity = None
        if self.padding is not None:
            capacity = arrays[self.padding.position].shape[0]
        rows = LocalRows(capacity, real_rows)
        copies = dict(zip(self.on_read, remaining, strict=True))
        variables = ReplicaVariables(self.surrounding, self.strategy, copies)
        entries: list[Entry] = []
        context = CompiledReplicaContext(self.strategy, rows, variables, entries)
        args, kwargs = self.structure.unflatten(inputs)
        replica = None if self.updating else context
        frame = Frame(self.strategy, replica=replica, access=variables, updating=self.updating)
        with entered(frame), bound(variables, replica):
            paths, values, structure = flatten_result(self.fn(*args, **kwargs))
        arrays_out = [value for value in values if isinstance(value, jax.Array)]
        self.outcome = Outcome(
            structure,
            tuple(None if isinstance(value, jax.Array) else value for value in values),
            tuple(
                path
                for path, value in zip(paths, values, strict=True)
                if isinstance(value, jax.Array)
            ),
            dict(variables.stored),
            frozenset(variables.used_copies),
            rows.mask_was_used,
            tuple(entries),
            context.chooses_packs,
        )
        return arrays_out + [variables.values[variable] for variable in variables.stored]


def traced(body: Body, local: Sequence[Any], rows_aval: Any, strategy: StrategyLike) -> Any:
    """The jaxpr of the replica function."""
    axis_env = [(AXIS, strategy.num_replicas_in_sync)]
    try:
        return without_unused_keys(jax.make_jaxpr(body, axis_env=axis_env)(list(local), rows_aval))
    except jax.errors.TracerBoolConversionError as error:
        raise _python_branch(error, body.fn) from error


def _python_branch(error: Exception, fn: Callable[..., Any]) -> errors.VaryingControlFlowError:
    site = errors.site_of_traceback(error.__traceback__)
    return errors.VaryingControlFlowError(
        errors.describe(
            f"Python branched on a traced value in `{getattr(fn, '__name__', fn)}`"
            + (f" at {site}." if site is not None else "."),
            why="In rx.function the function is traced once for all replicas: the replica id and "
            "the data have no value yet, and a branch that differs between replicas could leave "
            "some of them waiting in a collective.",
            fix="Use `jnp.where` (compute both sides) or `jax.lax.cond` without collectives in its "
            "branches; or call the step outside of `rx.function`, where Python control flow works.",
        )
    )
