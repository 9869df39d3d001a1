"""What all strategies have in common."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

import jax

from replicax import errors
from replicax import input as rx_input
from replicax.collectives import CollectiveKeys, CommunicationOptions, ReduceOp
from replicax.step import (
    CompiledReplicaContext,
    is_counted,
    mixed,
    require_cross_replica,
    run,
    surrounding_trace,
)
from replicax.step._arguments import Leaf, check_components
from replicax.strategies._aliases import TensorFlowAliases
from replicax.strategies._extended import StrategyExtended, ValueContext
from replicax.values import (
    DistributedValues,
    Frame,
    Mirrored,
    PerReplica,
    ReplicaMesh,
    Variable,
    current_frame,
    entered,
    regroup,
    spread,
)
from replicax.values import _combine as combine

_NUMBERS = itertools.count(1)


class Strategy(TensorFlowAliases):
    """A set of replicas that train together, and the rules by which they do.

    Args:
        devices: One device a replica, in replica order.
        options: How collectives travel; by default chosen for the devices.
    """

    def __init__(
        self, devices: Sequence[jax.Device], options: CommunicationOptions | None = None
    ) -> None:
        if options is not None and not isinstance(options, CommunicationOptions):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"`options` = {options!r} are not communication options.",
                    fix="Pass `rx.CommunicationOptions(...)`.",
                )
            )
        self._mesh = ReplicaMesh(devices)
        self._name = f"{type(self).__name__}#{next(_NUMBERS)}"
        self.communication_options = options or CommunicationOptions()
        self.collective_keys = CollectiveKeys()
        self.extended = StrategyExtended(self)
        self.group_key = self.collective_keys.group_key(self.extended.worker_devices)

    # -- facts ------------------------------------------------------------------

    @property
    def name(self) -> str:
        """A name for messages."""
        return self._name

    @property
    def replica_mesh(self) -> ReplicaMesh:
        """The replicas as a mesh of devices with the axis `"replica"`."""
        return self._mesh

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that take each step together."""
        return self._mesh.num_replicas

    @property
    def cluster_resolver(self) -> None:
        """Strategies of one process have no cluster."""
        return

    # -- contexts ---------------------------------------------------------------

    @contextlib.contextmanager
    def scope(self) -> Iterator[Self]:
        """Enter cross-replica context: variables created inside have one copy a replica.

        Context: any but replica. The scope holds for the current thread only.

        Raises:
            MixedStrategiesError: In the scope of another strategy.
            ContextError: In replica context.

        Examples:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> with strategy.scope():
            ...     rx.Variable(0.0, name="w")
            <MirroredVariable 'w' float32[]>
        """
        require_cross_replica(self, "scope")
        frame = current_frame()
        if frame is not None and frame.strategy is not None and frame.strategy is not self:
            raise mixed(frame.strategy, self, "scope")
        access = frame.access if frame is not None else None
        merging = frame.merging if frame is not None else None
        with entered(Frame(self, access=access, merging=merging)):
            yield self

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Run `fn` on every replica, in replica context.

        Inside `rx.function` the function is traced once, proved and compiled into one program over
        all replicas. Outside, it runs in Python once a replica (the eager runner).

        Context: cross-replica, or outside of every scope. Collective: yes.

        Args:
            fn: The replica function.
            args: Its arguments. Per-replica values are unpacked, so that each replica gets its
                component; arrays are the same on every replica; other objects are passed as they
                are.
            kwargs: Its named arguments, alike.
            options: Accepted for tf.distribute's sake; without effect.

        Returns:
            The results in their structure: a leaf that is equal on all replicas as one plain
            array, any other as `rx.PerReplica`.

        Raises:
            VaryingWriteError: A mirrored variable was written with a varying value.
            VaryingControlFlowError: Compiled: a collective stands under control flow that varies.
            CollectiveMismatchError: Eager: the replicas made different collectives.
            ContextError: In replica context.
            MixedStrategiesError: In another strategy's scope, or with its variables.

        Examples:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> strategy.run(lambda x: 2 * x, args=(rx.PerReplica([1, 5]),))
            PerReplica(2, 10)
        """
        del options
        return run(self, fn, args, kwargs)

    # -- combining -----------------------------------------------------------------

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
            The tree of arrays, mirrored. The mean of integers is float32.

        Raises:
            InvalidArgumentError: Unknown op, axis out of range, or a sum of a value that is not
                known to belong to the replicas.
            CollectiveMismatchError: Different shapes without an axis.

        Examples:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> strategy.reduce("mean", rx.PerReplica([[1.0, 2.0], [6.0]]), axis=0)
            Array(3., dtype=float32)
        """
        require_cross_replica(self, "reduce")
        parsed = ReduceOp.parse(op)
        return jax.tree.map(
            lambda leaf: self._reduce_leaf(parsed, leaf, axis),
            spread(value),
            is_leaf=combine.is_leaf,
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
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> strategy.gather(rx.PerReplica([[1, 2], [3]]), axis=0)
            Array([1, 2, 3], dtype=int32)
        """
        require_cross_replica(self, "gather")
        return jax.tree.map(
            lambda leaf: self._gather_leaf(leaf, axis), spread(value), is_leaf=combine.is_leaf
        )

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """The components of a value on this machine's replicas, in replica order.

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

    # -- making values ----------------------------------------------------------------

    def distribute_dataset(
        self, dataset: Any, options: rx_input.InputOptions | None = None
    ) -> rx_input.DistributedDataset:
        """Share the global batches of a dataset out over the replicas.

        Each replica gets an equal share of the rows, in order. If the rows of a batch cannot be
        shared evenly (most often the last batch), no row is lost: compiled steps get arrays of
        one shape in which padding is masked, the eager runner gets arrays of different lengths.

        Context: cross-replica, or outside of every scope.

        Args:
            dataset: An iterable of global batches, trees of arrays `[B, ...]`; or a tree (array,
                dict or tuple) of arrays with one row an example, which
                `rx.InputOptions(global_batch_size=...)` cuts into batches.
            options: `rx.InputOptions`.

        Returns:
            An iterable of the same trees with `rx.PerReplica` leaves.

        Examples:
            >>> import numpy as np
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> options = rx.InputOptions(global_batch_size=4)
            >>> for batch in strategy.distribute_dataset(np.arange(5), options):
            ...     print([x.tolist() for x in strategy.local_results(batch)])
            [[0, 1], [2, 3]]
            [[4], []]
        """
        require_cross_replica(self, "distribute_dataset")
        return rx_input.distribute(dataset, self._mesh, options)

    def distribute_values_from_function(self, fn: Callable[[ValueContext], Any]) -> Any:
        """Make a per-replica value by calling `fn` once a replica.

        Context: cross-replica, or outside of every scope.

        Args:
            fn: Gets a `ValueContext` and returns the replica's component, or a tree of them.

        Returns:
            The tree with `rx.PerReplica` leaves, each component on its replica's device.

        Raises:
            StructureMismatchError: The trees differ between replicas.

        Examples:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group)
            PerReplica(0, 1)
        """
        require_cross_replica(self, "distribute_values_from_function")
        if not callable(fn):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"distribute_values_from_function takes a function, not {fn!r}.",
                    fix="Pass a function of one `rx.ValueContext`.",
                )
            )
        n = self.num_replicas_in_sync
        components = [
            jax.device_put(jax.tree.map(combine.as_array, fn(ValueContext(i, n))), device)
            for i, device in enumerate(self._mesh.devices)
        ]
        return regroup(components, lambda values: PerReplica(tuple(values)))

    # -- parts ---------------------------------------------------------------------

    def _reduce_leaf(self, op: ReduceOp, value: Any, axis: Any) -> Any:
        self._check_count(value)
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

    def _gather_leaf(self, value: Any, axis: Any) -> Any:
        if not isinstance(value, PerReplica):
            return value
        self._check_count(value)
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
        check_components(self, Leaf(value, "value"))
        frame = current_frame()
        trace = surrounding_trace(frame.access if frame is not None else None)
        if trace is not None:
            trace.runs_on(self)

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
        return jax.device_put(result, self._mesh.mirrored)

    def _components(self, value: Any) -> tuple[Any, ...] | None:
        """The components, or None if the value does not belong to replicas."""
        self._check_count(value)
        if isinstance(value, PerReplica):
            if value.local is not None:
                stacked = self._merging().gather_local(value.local[None], 0)
                return tuple(stacked[i] for i in range(self.num_replicas_in_sync))
            return value.values
        if isinstance(value, DistributedValues) and isinstance(value, Variable):
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

    def __copy__(self) -> NoReturn:
        raise errors.FailedPreconditionError(
            errors.describe(
                f"{self.name} cannot be copied.",
                why="Variables and steps belong to one strategy object.",
                fix="Pass the strategy itself around.",
            )
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The strategy itself, so that a model that holds one can be copied."""
        del memo
        return self

    def __reduce__(self) -> NoReturn:
        raise errors.UnimplementedError(
            errors.describe(
                f"{self.name} cannot be pickled.",
                why="It stands for the devices of this process.",
                fix="Make the strategy anew in the other process.",
            )
        )

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(self.extended.worker_devices)}>"
