"""Variables of which each replica has a value of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import TURNS
from replicax.values import _lending
from replicax.values._distributed import DistributedValues, PerReplica
from replicax.values._frames import Frame, StrategyLike, current_frame
from replicax.values._initial import check_on_read
from replicax.values._kinds import VariableAggregation
from replicax.values._mesh import own_part
from replicax.values._shares import aggregate, copies_of
from replicax.values._variable import Variable
from replicax.values._workers import check_count, meet_to_read
from replicax.values._writes import Update, applied, check_shape, checked


class SyncOnReadVariable(Variable, DistributedValues, kind="on_read"):
    """A variable with one value a replica; reading it across replicas aggregates them.

    `rx.Variable(..., synchronization="on_read")` makes it inside `strategy.scope()`. Its copies
    are the rows of one array ``[num_replicas, ...]`` that is sharded over the replicas, so a step
    that updates it does not communicate.

    * In replica context each replica reads and writes its own value.
    * Across replicas a read gives the sum, the mean or replica 0's value, as `aggregation` says;
      with NONE it is an error. `assign` makes copies of which the value is the aggregate: with SUM
      each replica gets a share, and the shares add up to the value bit for bit. `assign` of an
      `rx.PerReplica` gives each copy its component.

    Examples:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     seen = rx.Variable(0, synchronization="on_read", aggregation="sum", name="seen")
        >>> _ = strategy.run(lambda x: seen.assign_add(x), args=(rx.PerReplica([3, 4]),))
        >>> int(seen)
        7
        >>> strategy.local_results(seen)
        (Array(3, dtype=int32), Array(4, dtype=int32))
    """

    is_on_read: ClassVar[bool] = True

    strategy: StrategyLike

    def _state_from(self, value: jax.Array) -> jax.Array:
        check_on_read(self.name, value.dtype, self.aggregation)
        mesh = self.strategy.replica_mesh
        return mesh.from_rows([value] * mesh.num_local_replicas)

    def _placed(self, state: Any) -> jax.Array:
        return self.strategy.replica_mesh.place_stacked(state)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one copy; it never changes."""
        return self._value.shape[1:]

    @property
    def _sharding(self) -> Any:
        return self.strategy.replica_mesh.stacked

    def _copies(self) -> tuple[jax.Array, ...]:
        return self.strategy.replica_mesh.rows(self._value)

    def _state_from_copies(self, copies: Sequence[jax.Array]) -> jax.Array:
        return self.strategy.replica_mesh.from_rows(copies)

    # -- reading ------------------------------------------------------------

    def _seen(self, state: jax.Array, frame: Frame | None) -> jax.Array:
        if frame is not None and frame.sees_one_copy and frame.access is not None:
            return state
        if self.aggregation is VariableAggregation.NONE:
            raise self._without_rule("read")
        if frame is None or frame.access is None:
            return self._aggregated()
        if frame.access.is_local:
            combined: jax.Array = frame.merging.combine_copies(self.aggregation, state)
            return combined
        return aggregate(state, self.aggregation)

    def _aggregated(self) -> jax.Array:
        """Combine the copies on one device, as `strategy.reduce` does."""
        mesh = self.strategy.replica_mesh
        if mesh.spans_processes:
            meet_to_read(self)
            rows = mesh.all_rows(self._value)
            return mesh.own.place_mirrored(aggregate(rows, self.aggregation))
        if mesh.is_cpu_simulation:
            TURNS.settle()
        home = mesh.devices[0]
        stacked = jnp.stack([jax.device_put(copy, home) for copy in self._copies()])
        placed = mesh.place_mirrored(aggregate(stacked, self.aggregation))
        return placed.block_until_ready() if mesh.is_cpu_simulation else placed

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The copies of this process, in replica order, each on its replica's device."""
        return self.per_replica().values

    def per_replica(self) -> PerReplica:
        """The copies as a per-replica value, for `strategy.reduce` and the like.

        Context: cross-replica, or outside of every scope.
        """
        frame = current_frame()
        if frame is None or frame.access is None:
            array = _lending.lend(self)
            if self._spans_processes:
                return PerReplica.from_stacked(array)
            return PerReplica(self._copies())
        state = frame.access.read(self)
        if frame.access.is_local:
            return PerReplica.from_local(state)
        return PerReplica.from_stacked(state)

    def _without_rule(self, doing: str) -> errors.InvalidArgumentError:
        return errors.InvalidArgumentError(
            errors.describe(
                f"Variable `{self.name}` was {doing} in cross-replica context, but it has no "
                "aggregation.",
                why="It has one value a replica (ON_READ), and nothing says how to make one of "
                "them.",
                fix="Give it one (`rx.Variable(..., aggregation='sum')`), combine the values with "
                "`strategy.reduce(op, variable, axis=None)`, or look at them with "
                "`strategy.local_results(variable)`.",
            )
        )

    # -- writing ------------------------------------------------------------

    def assign(self, value: Any) -> None:
        """Set the copies so that reading gives `value`; see `Variable.assign`.

        Args:
            value: As in `Variable.assign`; or, across replicas, an `rx.PerReplica` with one
                component a copy.
        """
        frame = current_frame()
        if not isinstance(value, PerReplica) or (frame is not None and frame.sees_one_copy):
            super().assign(value)
            return
        site = errors.call_site()
        copies = _checked_components(self, value)
        is_local = frame is not None and frame.access is not None and frame.access.is_local
        if frame is not None and is_local and value.local is None:
            copies = frame.merging.own_copy(copies)
        self._change_across(lambda _: copies, frame, site)

    def _combined(self, replica: Any, value: jax.Array) -> jax.Array:
        del replica
        return value

    def _across(self, update: Update, operand: Any, state: Any, frame: Frame | None) -> Any:
        if update == "assign":
            count = self.strategy.num_replicas_in_sync
            if frame is None or frame.access is None:
                return self._shared_out(operand)
            copies = copies_of(operand, count, self.aggregation)
            return frame.merging.own_copy(copies) if frame.access.is_local else copies
        self._require_no_sum(update)
        return applied(update, state, operand)

    def _shared_out(self, value: jax.Array) -> jax.Array:
        """Copies, of this process's replicas, that together with the others read as `value`."""
        mesh = self.strategy.replica_mesh
        copies: jax.Array = _compiled_copies(own_part(value), mesh.num_replicas, self.aggregation)
        return copies[np.array(mesh.local_replicas)] if mesh.spans_processes else copies

    def _require_no_sum(self, call: str) -> None:
        if self.aggregation is VariableAggregation.SUM:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`{self.name}.{call}` was called in cross-replica context.",
                    why="The variable's value is the sum of its copies (ON_READ, SUM): changing "
                    "each of them would count once a replica.",
                    fix=f"Call it in replica context, or set the sum: `{self.name}.assign(...)`.",
                )
            )


# One program instead of one for each of two dozen operations.
_compiled_copies: Any = jax.jit(copies_of, static_argnums=(1, 2))


def _checked_components(variable: SyncOnReadVariable, value: PerReplica) -> Any:
    """The components as copies `[num_replicas, ...]`, or this replica's in a merge call."""
    if value.local is not None:
        copy = checked(variable, "assign", value.local)
        check_shape(variable, "assign", copy.shape)
        return copy
    frame = current_frame()
    is_compiled = frame is not None and frame.access is not None
    what = f"`{variable.name}.assign` was given {value!r}"
    check_count(variable.strategy, value, what, is_compiled=is_compiled)
    if value.stacked is not None and value.rows is None:
        stacked = checked(variable, "assign", value.stacked)
        check_shape(variable, "assign", stacked.shape[1:])
        return stacked
    copies = [checked(variable, "assign", component) for component in value.values]
    for copy in copies:
        check_shape(variable, "assign", copy.shape)
    if not is_compiled:
        return variable._state_from_copies(copies)
    home = variable.strategy.replica_mesh.devices[0]
    is_traced = [isinstance(copy, jax.core.Tracer) for copy in copies]
    here = [x if t else jax.device_put(x, home) for x, t in zip(copies, is_traced, strict=True)]
    return jnp.stack(here)
