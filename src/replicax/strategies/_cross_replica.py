"""Combine what the replicas hold: `reduce`, `gather` and `local_results` of a strategy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.collectives import TURNS, ReduceOp
from replicax.step import (
    CompiledReplicaContext,
    is_counted,
    is_per_row,
    require_cross_replica,
    surrounding_trace,
)
from replicax.step._arguments import Leaf, check_components
from replicax.values import (
    IndexedSlices,
    Mirrored,
    MirroredVariable,
    PerReplica,
    ReplicaMesh,
    SyncOnReadVariable,
    Variable,
    current_frame,
    spread,
)
from replicax.values import _combine as combine
from replicax.values import _exchange as exchange
from replicax.values import _sparse as sparse
from replicax.values._imagined import imagined_mesh
from replicax.values._workers import meet_to_combine


def _is_leaf_or_sparse(value: Any) -> bool:
    return combine.is_leaf(value) or sparse.is_sparse(value)


class CrossReplicaOperations:
    """What every strategy is to those below it, and its methods that act across its replicas.

    Args:
        mesh: The replicas.
        name: A name for messages.
    """

    def __init__(self, mesh: ReplicaMesh, name: str) -> None:
        self._mesh, self._name = mesh, name

    @property
    def name(self) -> str:
        """A name for messages."""
        return self._name

    @property
    def replica_mesh(self) -> ReplicaMesh:
        """The replicas as a mesh of devices with the axis `"replica"`."""
        return imagined_mesh(self) or self._mesh

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that take each step together."""
        return self.replica_mesh.num_replicas

    @property
    def parameter_device(self) -> jax.Device | None:
        """The device that holds the variables, or None if each replica's does."""
        return None

    def reduce(self, op: ReduceOp | str, value: Any, axis: Any) -> Any:
        """Combine the components of a per-replica value, and axes of each component.

        Context: cross-replica, or outside of every scope. Collective: yes in compiled steps.

        Args:
            op: `"sum"`, `"mean"` or a `ReduceOp`.
            value: A tree of per-replica values. A value that is equal on all replicas is its own
                mean; its sum counts it once a replica if `strategy.run` returned it.
            axis: None to combine elementwise; an axis or a tuple of axes of the components to
                combine their elements too. The mean then weighs rows, not replicas, alike, and
                padding does not count.

        Returns:
            The tree of arrays, mirrored. The mean of integers is float32. The rows of
            `rx.IndexedSlices` are joined in replica order; a mean divides them by the number of
            replicas.

        Raises:
            InvalidArgumentError: Unknown op, axis out of range, or a sum of a value that is not
                known to belong to the replicas; an axis, MAX or MIN for `rx.IndexedSlices`.
            CollectiveMismatchError: Different shapes without an axis.

        Examples:
            >>> import numpy as np
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> rows = rx.PerReplica([np.array([1.0, 2.0]), np.array([6.0])])
            >>> strategy.reduce("mean", rows, axis=0)
            Array(3., dtype=float32)
        """
        require_cross_replica(self, "reduce")
        self._take_turn()
        parsed, value = ReduceOp.parse(op), spread(value)
        self._meet_workers("strategy.reduce", value, op=parsed.name, axis=str(axis))
        return jax.tree.map(
            lambda leaf: self._reduce_leaf(parsed, leaf, axis), value, is_leaf=_is_leaf_or_sparse
        )

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenate the components of a per-replica value along `axis`, in replica order.

        Padding is left out. A value that is equal on all replicas is returned as it is.

        Context: cross-replica, or outside of every scope. Collective: yes in compiled steps.

        Args:
            value: A tree of per-replica values with at least one axis.
            axis: The axis to join, whose length may differ between components.

        Raises:
            InvalidArgumentError: A scalar, or an axis that is out of range.
            CollectiveMismatchError: Shapes that differ on another axis.

        Examples:
            >>> import numpy as np
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> strategy.gather(rx.PerReplica([np.array([1, 2]), np.array([3])]), axis=0)
            Array([1, 2, 3], dtype=int32)
        """
        require_cross_replica(self, "gather")
        self._take_turn()
        value = spread(value)
        self._meet_workers("strategy.gather", value, axis=str(axis))
        return jax.tree.map(
            lambda leaf: self._gather_leaf(leaf, axis), value, is_leaf=_is_leaf_or_sparse
        )

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """The components of a value on this process's replicas, in replica order.

        Context: cross-replica, or outside of every scope.

        Args:
            value: A per-replica or mirrored value, or a tree of them.

        Returns:
            One entry a replica; one entry in all if the value does not belong to replicas.

        Examples:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> strategy.local_results(rx.PerReplica([1, 5]))
            (1, 5)
        """
        structure: Any
        leaves, structure = jax.tree.flatten(value, is_leaf=combine.is_leaf)
        columns = [self._components(leaf) for leaf in leaves]
        count = max((len(column) for column in columns if column is not None), default=1)
        filled = [
            column if column is not None else (leaf,) * count
            for leaf, column in zip(leaves, columns, strict=True)
        ]
        return tuple(structure.unflatten([c[i] for c in filled]) for i in range(count))

    def _take_turn(self) -> None:
        """Let steps end before a program that combines their results, where they would clash."""
        frame = current_frame()
        if self._mesh.is_cpu_simulation and (frame is None or frame.access is None):
            TURNS.settle()

    def _meet_workers(self, call: str, value: Any, **facts: Any) -> None:
        """Make sure that all workers combine the same values, where there are several."""
        frame = current_frame()
        if self._mesh.spans_processes and (frame is None or frame.access is None):
            meet_to_combine(call, value, facts)

    # -- parts ---------------------------------------------------------------------

    def _reduce_leaf(self, op: ReduceOp, value: Any, axis: Any) -> Any:
        if sparse.is_sparse(value):
            return self._reduce_sparse(op, value, axis)
        if isinstance(value, SyncOnReadVariable):
            value = value.per_replica()
        value = self._whole(value)
        if not isinstance(value, PerReplica):
            array, copies = self._common(value)
            result = combine.reduce_common(op, array, axis, copies)
        elif value.local is not None:
            axes = combine.checked_axes(axis, [value.local.shape])
            result = self._merging().reduce_local(op, value.local, axes)
        elif value.stacked is not None:
            axes = combine.checked_axes(axis, [value.stacked.shape[1:]])
            result = combine.reduce_stacked(op, value.stacked, axes, value.rows)
        else:
            components = [combine.as_array(component) for component in value.values]
            axes = combine.checked_axes(axis, [component.shape for component in components])
            result = combine.reduce_components(op, components, axes)
        return self._placed(result)

    def _reduce_sparse(self, op: ReduceOp, value: IndexedSlices, axis: Any) -> IndexedSlices:
        """Join the rows of all replicas."""
        sparse.require_additive(op, value, "strategy.reduce")
        sparse.require_no_axis(value, axis)
        if not isinstance(value.values, PerReplica):
            rows, copies = self._common(value.values)
            if op is ReduceOp.SUM:
                combine.require_counted(rows, copies)
            elif not isinstance(value.indices, PerReplica):
                return value
        rows, indices = (self._joined(part) for part in (value.values, value.indices))
        if op is ReduceOp.MEAN:
            rows = sparse.share_of_mean(rows, self.num_replicas_in_sync)
        return IndexedSlices(self._placed(rows), self._placed(indices), value.dense_shape)

    def _joined(self, part: Any) -> Any:
        """The rows of all replicas; what is equal on all replicas counts once a replica."""
        if not isinstance(part, PerReplica):
            return jnp.concatenate([part] * self.num_replicas_in_sync)
        sparse.require_known_lengths(part)
        return self._gather_leaf(part, 0)

    def _gather_leaf(self, value: Any, axis: Any) -> Any:
        if isinstance(value, SyncOnReadVariable):
            value = value.per_replica()
        if sparse.is_sparse(value):
            raise sparse.not_gathered(value)
        if is_per_row(value):
            value = PerReplica(self._mesh.components(value))
        if not isinstance(value, PerReplica):
            return value
        value = self._whole(value)
        if value.local is not None:
            return self._merging().gather_local(value.local, axis)
        padded = value.rows is not None
        if value.stacked is not None and not padded:
            axes = combine.checked_axis_to_join(axis, [value.stacked.shape[1:]])
            return self._placed(combine.gather_stacked(value.stacked, axes))
        components = [combine.as_array(component) for component in value.values]
        axes = combine.checked_axis_to_join(axis, [component.shape for component in components])
        return self._placed(combine.gather_components(components, axes))

    def _check_count(self, value: Any) -> None:
        """Check that a per-replica value has one component a replica, and belongs here."""
        if not isinstance(value, PerReplica) or value.num_components is None:
            return
        frame = current_frame()
        trace = surrounding_trace(frame.access if frame is not None else None)
        check_components(self, Leaf(value, "value"), is_compiled=trace is not None)
        if trace is not None:
            trace.runs_on(self)

    def _whole(self, value: Any) -> Any:
        """A per-replica value with the components of all processes, outside of compiled steps."""
        self._check_count(value)
        if not isinstance(value, PerReplica) or not self._mesh.spans_processes:
            return value
        frame = current_frame()
        is_traced = frame is not None and frame.access is not None
        return value if is_traced else exchange.all_components(self._mesh, value)

    def _common(self, value: Any) -> tuple[Any, int]:
        """A value that is not per-replica, and how many replicas are known to hold it."""
        if isinstance(value, (Variable, Mirrored)):
            return value, 0 if self.num_replicas_in_sync > 1 else 1
        frame = current_frame()
        trace = surrounding_trace(frame.access if frame is not None else None)
        counted = is_counted(value) if trace is None else trace.is_counted(value)
        if counted or self.num_replicas_in_sync == 1:
            return value, self.num_replicas_in_sync
        return value, 0

    def _placed(self, result: Any) -> Any:
        """Results that exist already are mirrored; tracers are left to the compiler."""
        if isinstance(result, jax.core.Tracer) or not isinstance(result, jax.Array):
            return result
        if self._mesh.spans_processes:
            return self._mesh.place_mirrored(result) if result.is_fully_addressable else result
        placed = jax.device_put(result, self._mesh.mirrored)
        if self._mesh.is_cpu_simulation:
            placed.block_until_ready()
        return placed

    def _components(self, value: Any) -> tuple[Any, ...] | None:
        """The components, or None if the value does not belong to replicas.

        In a merge function they lie on all devices, so that they can be used together.
        """
        components = self._components_in_place(value)
        frame = current_frame()
        if components is None or frame is None or frame.merging is None:
            return components
        if self._mesh.spans_processes and frame.access is None:
            return tuple(jax.tree.map(self._mesh.own.place_mirrored, components))
        return tuple(jax.tree.map(self._placed, components))

    def _components_in_place(self, value: Any) -> tuple[Any, ...] | None:
        """The components, each on its replica's device."""
        if isinstance(value, SyncOnReadVariable):
            value = value.per_replica()
        self._check_count(value)
        if isinstance(value, PerReplica):
            if value.local is not None:
                stacked = self._merging().gather_local(value.local[None], 0)
                return tuple(stacked[i] for i in range(self.num_replicas_in_sync))
            return value.values
        if isinstance(value, MirroredVariable):
            return value.values
        if isinstance(value, Mirrored):
            value = value.value
        if self._mesh.holds_mirrored(value):
            return self._mesh.components(value)
        frame = current_frame()
        trace = surrounding_trace(frame.access if frame is not None else None)
        if trace is not None and id(value) in trace.mirrored:
            return (value,) * self.num_replicas_in_sync
        return (value,) if self.num_replicas_in_sync == 1 else None

    def _merging(self) -> CompiledReplicaContext:
        frame = current_frame()
        merging = frame.merging if frame is not None else None
        if isinstance(merging, CompiledReplicaContext):
            return merging
        raise errors.ContextError(
            errors.describe(
                "A per-replica value of `merge_call` was used outside of its merge function.",
                fix="Reduce it inside the merge function and return the result.",
            )
        )
