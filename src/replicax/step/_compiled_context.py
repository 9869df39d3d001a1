"""The replica context of the compiled runner: collectives become operations of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import Entry, ReduceOp, mapped
from replicax.step._access import TracedVariables, constant, require_same_strategy
from replicax.step._arguments import Leaf, check_components
from replicax.step._collective import Collective
from replicax.step._context import ReplicaContext
from replicax.step._rows import LocalRows
from replicax.values import (
    AXIS,
    Frame,
    PerReplica,
    StrategyLike,
    Variable,
    VariableAccess,
    VariableAggregation,
    entered,
)
from replicax.values._combine import over_elements


class ReplicaVariables(TracedVariables):
    """Variables as a traced replica function sees them.

    Args:
        parent: Where the values of mirrored variables come from.
        strategy: The strategy whose replica it is.
        copies: This replica's copies of sync-on-read variables.

    Attributes:
        used_copies: Those of `copies` that were read or written.
    """

    def __init__(
        self, parent: VariableAccess, strategy: StrategyLike, copies: Mapping[Variable, Any]
    ) -> None:
        super().__init__(parent, copies)
        self._strategy = strategy
        self.used_copies: set[Variable] = set()

    @property
    def is_local(self) -> bool:
        """Yes."""
        return True

    def read(self, variable: Variable) -> jax.Array:
        """Return this replica's copy."""
        require_same_strategy(variable, self._strategy, "read")
        if variable.is_on_read:
            self.used_copies.add(variable)
        return super().read(variable)

    def create(self, make: Callable[[], Variable]) -> Variable:
        """Create a variable; its copy is a constant of this trace, which is made anew."""
        variable = super().create(make)
        if variable.is_on_read:
            self.values[variable] = constant(variable._value)[0]
        return variable

    def store(self, variable: Variable, value: Any, call_site: errors.CallSite | None) -> None:
        """Record a write on this replica."""
        require_same_strategy(variable, self._strategy, "written")
        if variable.is_on_read:
            self.used_copies.add(variable)
        super().store(variable, value, call_site)


class CompiledReplicaContext(ReplicaContext):
    """The replica context while a replica function is traced.

    Attributes:
        chooses_packs: Whether a collective said how much is to travel together.
    """

    def __init__(
        self,
        strategy: StrategyLike,
        rows: LocalRows,
        variables: ReplicaVariables,
        entries: list[Entry],
    ) -> None:
        super().__init__(strategy, rows)
        self._variables = variables
        self._entries = entries
        self.chooses_packs = False

    @property
    def replica_id_in_sync_group(self) -> jax.Array:
        """i32[], traced."""
        self._require_active("replica_id_in_sync_group")
        # Not kept: the same tracer must not appear at several levels of tracing.
        return jax.lax.axis_index(AXIS)

    def _communicate(self, collective: Collective, leaves: Sequence[Any]) -> list[Any]:
        where: dict[str, Any] = {"axis_name": AXIS, "num_replicas": self.num_replicas_in_sync}
        packs: mapped.Packs = ()
        self.chooses_packs |= collective.options.bytes_per_pack > 0
        match collective.kind:
            case "all_reduce":
                results, packs = mapped.all_reduce_in_packs(
                    collective.op,
                    leaves,
                    options=collective.options,
                    transport=self.strategy.replica_mesh.transport,
                    **where,
                )
            case "all_gather":
                results = [mapped.all_gather(x, collective.axis, **where) for x in leaves]
            case "reduce_scatter":
                results = [
                    mapped.reduce_scatter(
                        collective.op,
                        x,
                        collective.axis,
                        options=collective.options,
                        transport=self.strategy.replica_mesh.transport,
                        **where,
                    )
                    for x in leaves
                ]
            case _:
                results = [mapped.broadcast(x, collective.source, **where) for x in leaves]
        names = collective.leaf_names(results) if packs else ()
        self._record(collective, [jnp.asarray(leaf) for leaf in leaves], names, packs)
        return results

    def _record(
        self,
        collective: Collective,
        arrays: Sequence[jax.Array],
        names: tuple[str, ...],
        packs: mapped.Packs,
    ) -> None:
        keys = self.strategy.collective_keys
        group = self.strategy.group_key
        self._entries.append(
            Entry(
                group_key=group,
                instance_key=keys.instance_key(group),
                kind=collective.kind,
                op=collective.op_name,
                dtypes=tuple(str(array.dtype) for array in arrays),
                shapes=tuple(array.shape for array in arrays),
                call_site=errors.call_site(),
                names=names,
                packs=packs,
                wire_dtype=collective.wire_dtype(arrays, self.num_replicas_in_sync),
            )
        )

    def _merge(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        def outwards(leaf: Any) -> Any:
            is_array = isinstance(leaf, (jax.Array, np.ndarray))
            return PerReplica.from_local(jnp.asarray(leaf)) if is_array else leaf

        def inwards(leaf: Any) -> Any:
            if not isinstance(leaf, PerReplica):
                return leaf
            if leaf.local is not None:
                return leaf.local
            check_components(self.strategy, Leaf(leaf, "merge_call's result"), is_compiled=True)
            return jnp.stack(leaf.values)[self.replica_id_in_sync_group]

        args, kwargs = jax.tree.map(outwards, (args, kwargs))
        with entered(Frame(self.strategy, access=self._variables, merging=self)):
            result = merge_fn(self.strategy, *args, **kwargs)
        return jax.tree.map(inwards, result, is_leaf=lambda x: isinstance(x, PerReplica))

    def create_variable(self, make: Callable[[], Variable], facts: dict[str, Any]) -> Variable:
        """Create one variable for all replicas."""
        del facts
        return self._variables.create(make)

    def combine_copies(self, aggregation: VariableAggregation, local: Any) -> Any:
        """One value from the replicas' copies of a sync-on-read variable, in a merge call."""
        if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return self._communicate(Collective("broadcast"), [local])[0]
        return self.reduce_local(ReduceOp.parse(aggregation.value), local, ())

    def own_copy(self, copies: Any) -> Any:
        """This replica's row of copies `[num_replicas, ...]`."""
        return jnp.asarray(copies)[jax.lax.axis_index(AXIS)]

    def reduce_local(self, op: ReduceOp, local: Any, axes: tuple[int, ...]) -> Any:
        """Reduce a per-replica value of a merge call, and ``axes`` of its components."""
        if axes:
            local = over_elements(op)(local, axis=axes)
        return self._communicate(Collective("all_reduce", op=op), [local])[0]

    def gather_local(self, local: Any, axis: int) -> Any:
        """Concatenate a per-replica value of a merge call."""
        return self._communicate(Collective("all_gather", axis=axis), [local])[0]
