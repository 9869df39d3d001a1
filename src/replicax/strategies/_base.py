"""What all strategies have in common."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

import jax

from replicax import _integrations, errors
from replicax import input as rx_input
from replicax.collectives import (
    CollectiveKeys,
    CommunicationImplementation,
    CommunicationOptions,
)
from replicax.step import (
    RandomStream,
    mixed,
    require_cross_replica,
    run,
)
from replicax.strategies._aliases import TensorFlowAliases
from replicax.strategies._announcement import announce
from replicax.strategies._cross_replica import CrossReplicaOperations
from replicax.strategies._extended import StrategyExtended
from replicax.strategies._value_context import ValueContext
from replicax.values import (
    Frame,
    PerReplica,
    ReplicaMesh,
    current_frame,
    entered,
    regroup,
)
from replicax.values import _combine as combine
from replicax.values import _exchange as exchange

# Counted for each class: workers make the same strategies over all of them, but perhaps others.
_NUMBERS: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))


class Strategy(CrossReplicaOperations, TensorFlowAliases):
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
        _check_implementation(devices, options)
        kind = type(self).__name__
        super().__init__(ReplicaMesh(devices), f"{kind}#{next(_NUMBERS[kind])}")
        self.communication_options = options or CommunicationOptions()
        self.collective_keys = CollectiveKeys()
        self.extended = StrategyExtended(self)
        self.random_stream = RandomStream(self, seed=0)
        self.group_key = self.collective_keys.group_key(self.extended.worker_devices)
        if self.is_announced:
            announce(self)

    is_announced = True
    """Whether the log says that such a strategy was made."""

    # -- facts ------------------------------------------------------------------

    @property
    def cluster_resolver(self) -> Any:
        """What describes the cluster; None for strategies of one process."""
        return None

    @property
    def worker_count(self) -> int:
        """Number of processes that have replicas."""
        return len({device.process_index for device in self._mesh.devices})

    @property
    def is_chief(self) -> bool:
        """Whether this process has replica 0: the one that should print and write summaries."""
        return 0 in self._mesh.local_replicas

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
        _integrations.load()
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
        _integrations.load()
        return run(self, fn, args, kwargs)

    def set_seed(self, seed: int) -> None:
        """Start the random stream of `ctx.rng()` at `seed`. It starts at 0 otherwise.

        Context: cross-replica, or outside of every scope.

        Args:
            seed: 0 to 2**32 - 1.

        Examples:
            >>> import replicax as rx
            >>> rx.MirroredStrategy(["cpu:0", "cpu:1"]).set_seed(7)
        """
        require_cross_replica(self, "set_seed")
        self.random_stream.reset(seed)

    # -- making values ----------------------------------------------------------------

    def distribute_dataset(
        self, dataset: Any, options: rx_input.InputOptions | None = None
    ) -> rx_input.DistributedDataset:
        """Share the global batches of a dataset out over the replicas.

        Each replica gets an equal share of the rows, in order. If the rows of a batch cannot be
        shared evenly (most often the last batch), no row is lost: compiled steps get arrays of
        one shape in which padding is masked, the eager runner gets arrays of different lengths.

        Which replica reads which rows is the `plan` of the result, known before anything is read.

        Context: cross-replica, or outside of every scope.

        Args:
            dataset: A dataset of `rx.data` or of another library that it knows; or an iterable of
                global batches, trees of arrays `[B, ...]`; or a tree (array, dict or tuple) of
                arrays with one row an example, which `rx.InputOptions(global_batch_size=...)`
                cuts into batches.
            options: `rx.InputOptions`.

        Returns:
            An iterable of the same trees with `rx.PerReplica` leaves. Each pass is an epoch, and
            an iterator can be put back where another one was, on any number of replicas.

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

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[rx_input.InputContext], Any],
        options: rx_input.InputOptions | None = None,
    ) -> rx_input.DistributedDataset:
        """Deal out the batches that a function makes: one a replica and step, in turn.

        Each batch reaches one replica as it is. Where the last step has too few batches, the
        other replicas get batches without rows; where the batches of a step differ in length,
        they are padded and masked like the remainder of `distribute_dataset`.

        Context: cross-replica, or outside of every scope.

        Args:
            dataset_fn: Gets an `rx.InputContext` and returns an iterable of one replica's
                batches, trees of arrays `[B, ...]`. It is called once, here; with
                `replication_mode="per_replica"` once for each replica, which gets these batches.
            options: `rx.InputOptions`. With `remainder="drop"` the batches of a step are cut to
                the shortest.

        Returns:
            An iterable of the same trees with `rx.PerReplica` leaves.

        Examples:
            >>> import numpy as np
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> def batches(context):
            ...     rows = context.get_per_replica_batch_size(4)
            ...     return [np.full(rows, i) for i in range(3)]
            >>> for batch in strategy.distribute_datasets_from_function(batches):
            ...     print([x.tolist() for x in strategy.local_results(batch)])
            [[0, 0], [1, 1]]
            [[2, 2], []]
        """
        require_cross_replica(self, "distribute_datasets_from_function")
        return rx_input.from_function(dataset_fn, self._mesh, options)

    def distribute_values_from_function(self, fn: Callable[[ValueContext], Any]) -> Any:
        """Make a per-replica value by calling `fn` once a replica, in the replica's process.

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
        n, mesh = self.num_replicas_in_sync, self._mesh
        components = [
            jax.device_put(jax.tree.map(combine.as_array, fn(ValueContext(i, n))), device)
            for i, device in zip(mesh.local_replicas, mesh.local_devices, strict=True)
        ]
        values = regroup(components, lambda values: PerReplica(tuple(values)))
        return exchange.joined(mesh, values) if mesh.spans_processes else values

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


def _check_implementation(
    devices: Sequence[jax.Device], options: CommunicationOptions | None
) -> None:
    """Check that the devices have the transport that was asked for by name."""
    platforms = sorted({device.platform for device in devices})
    asked = options.implementation if options is not None else None
    if asked is CommunicationImplementation.NCCL and platforms != ["gpu"]:
        raise errors.UnimplementedError(
            errors.describe(
                f"`implementation` = {asked.name!r}, and the replicas are on: "
                f"{', '.join(platforms)}.",
                why="NCCL connects GPUs only.",
                fix="Leave `implementation` out, or pass 'AUTO': between processes, CPUs use Gloo.",
            )
        )
