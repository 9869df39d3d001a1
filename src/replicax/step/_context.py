"""The replica context: what a replica function can ask and do while it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax

from replicax import errors
from replicax.collectives import CommunicationOptions, ReduceOp
from replicax.step._arguments import check_merge_arguments
from replicax.step._collective import Collective
from replicax.step._random import RandomStream, checked_key
from replicax.step._row_sums import RowSums
from replicax.step._rows import LocalRows
from replicax.step._sparse import holds_sparse_rows, reduce_with_sparse_rows
from replicax.values import Frame, Mirrored, PerReplica, StrategyLike, Variable, current_frame


class ReplicaContext(RowSums):
    """What the function given to `strategy.run` sees of its replica.

    `rx.get_replica_context()` returns it. All collectives here must be called by every replica in
    the same order; they take trees of arrays or numbers, and keep their structure. The gradient of
    a collective is the same collective of the cotangents, as in tf.distribute.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> def replica_fn(x):
        ...     return rx.get_replica_context().all_reduce("sum", x)
        >>> strategy.run(replica_fn, args=(rx.PerReplica([1.0, 2.0]),))
        Array(3., dtype=float32)
    """

    def __init__(self, strategy: StrategyLike | None, rows: LocalRows) -> None:
        self._strategy = strategy
        self._rows = rows

    # -- what runners provide ----------------------------------------------

    def _communicate(self, collective: Collective, leaves: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    def _merge(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        raise NotImplementedError

    @property
    def replica_id_in_sync_group(self) -> Any:
        """This replica's number, from 0: an `int` in the eager runner, a traced i32[] compiled."""
        raise NotImplementedError

    # -- facts ---------------------------------------------------------------

    @property
    def strategy(self) -> Any:
        """The strategy whose replica this is."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that take the step together."""
        return 1 if self._strategy is None else self._strategy.num_replicas_in_sync

    @property
    def example_mask(self) -> jax.Array | None:
        """bool[B]: which rows of this replica's batch are real, or None if all are.

        Only the remainder of a dataset has rows that are not real; see `global_mean`.
        """
        return self._rows.mask()

    @property
    def row_mask(self) -> jax.Array | None:
        """The same as `example_mask`."""
        return self.example_mask

    def rng(self, key: jax.Array | None = None) -> jax.Array:
        """Return a random key of this replica's own.

        It is `jax.random.fold_in(key, replica id)`: the same in every run, different on every
        replica. Without `key`, each call takes the next key of the strategy's stream, which starts
        at seed 0 or at `strategy.set_seed`, and which compiled steps advance like any variable.

        Context: replica. Collective: no, but every replica must call it equally often.

        Args:
            key: A key that is equal on all replicas, such as `jax.random.key(7)`.

        Returns:
            A random key, varying.

        Raises:
            ArgumentTypeError: `key` is no random key.

        Examples:
            >>> import jax
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> def draw():
            ...     key = rx.get_replica_context().rng(jax.random.key(7))
            ...     return jax.random.randint(key, (), 0, 1000)
            >>> first, second = strategy.local_results(strategy.run(draw))
            >>> bool(first == second)
            False
        """
        self._require_active("rng")
        if key is None:
            key = self._stream().next_key()
        return jax.random.fold_in(checked_key(key), self.replica_id_in_sync_group)

    def _stream(self) -> RandomStream:
        stream: RandomStream = self.strategy.random_stream
        return stream

    # -- collectives ----------------------------------------------------------

    def all_reduce(
        self, op: ReduceOp | str, value: Any, options: CommunicationOptions | None = None
    ) -> Any:
        """Combine the replicas' values; every replica gets the result.

        Context: replica. Collective: yes.

        Args:
            op: `"sum"`, `"mean"` or a `ReduceOp`.
            value: A tree of arrays or numbers, with one structure, shapes and dtypes on all
                replicas. Of `rx.IndexedSlices` the eager runner takes any number of rows.
            options: How the value travels; by default the strategy's options.

        Returns:
            The tree, mirrored. The mean of integers is float32. The rows of `rx.IndexedSlices`
            are joined in replica order; a mean divides them by the number of replicas.

        Raises:
            InvalidArgumentError: An unknown op, or MAX or MIN of `rx.IndexedSlices`.
            ContextError: Outside of the replica function that this context belongs to.
            CollectiveMismatchError: The replicas disagree on op, structure, shape or dtype.
        """
        return self._on_leaves(
            Collective("all_reduce", op=ReduceOp.parse(op), options=self._options(options)), value
        )

    def all_gather(self, value: Any, axis: int, options: CommunicationOptions | None = None) -> Any:
        """Concatenate the replicas' values along `axis`, in replica order.

        Context: replica. Collective: yes. The gradient is the own slice of the summed cotangents.

        Args:
            value: A tree of arrays with at least one axis. In the eager runner the length of
                `axis` may differ between replicas.
            axis: The axis to join.
            options: How the value travels.

        Returns:
            The tree, mirrored.
        """
        return self._on_leaves(
            Collective("all_gather", axis=axis, options=self._options(options)), value
        )

    def reduce_scatter(
        self,
        op: ReduceOp | str,
        value: Any,
        axis: int = 0,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Combine the replicas' values; each replica gets its equal part along `axis`.

        Context: replica. Collective: yes. The gradient is `all_gather` of the cotangents.

        Args:
            op: As in `all_reduce`.
            value: A tree of arrays whose length along `axis` is divisible by the replicas.
            axis: The axis that is cut.
            options: How the value travels.
        """
        return self._on_leaves(
            Collective(
                "reduce_scatter",
                op=ReduceOp.parse(op),
                axis=axis,
                options=self._options(options),
            ),
            value,
        )

    def broadcast(
        self, value: Any, source: int = 0, options: CommunicationOptions | None = None
    ) -> Any:
        """Give every replica the value of replica `source`, bit by bit.

        Context: replica. Collective: yes. The gradient is the sum of the cotangents, on `source`.

        Args:
            value: A tree of arrays or numbers.
            source: The replica whose value all get.
            options: How the value travels.
        """
        return self._on_leaves(
            Collective("broadcast", source=source, options=self._options(options)), value
        )

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Meet all replicas and call `merge_fn(strategy, *args, **kwargs)` once.

        Inside, the context is cross-replica: arrays that were passed arrive as `rx.PerReplica`.

        Context: replica. Collective: yes.

        Args:
            merge_fn: The same function on every replica.
            args: Arguments of this replica.
            kwargs: Named arguments of this replica.

        Returns:
            The result; parts that are per-replica come back as this replica's component.

        Raises:
            CollectiveMismatchError: The replicas meet with different functions, or not all meet.
        """
        self._require_active("merge_call")
        check_merge_arguments(merge_fn, args, kwargs)
        return self._merge(merge_fn, tuple(args), dict(kwargs or {}))

    # -- parts ----------------------------------------------------------------

    def _on_leaves(self, collective: Collective, value: Any) -> Any:
        self._require_active(collective.kind)
        value = jax.tree.map(
            _plain, value, is_leaf=lambda x: isinstance(x, (Variable, Mirrored, PerReplica))
        )
        if collective.kind != "broadcast" and holds_sparse_rows(value):
            return reduce_with_sparse_rows(
                self._communicate, collective, value, self.num_replicas_in_sync
            )
        structure: Any
        leaves, structure = jax.tree.flatten(value)
        collective = dataclasses.replace(collective, structure=structure)
        return structure.unflatten(self._communicate(collective, leaves))

    def _options(self, options: CommunicationOptions | None) -> CommunicationOptions:
        default: CommunicationOptions = getattr(
            self._strategy, "communication_options", CommunicationOptions()
        )
        if options is None:
            return default
        if not isinstance(options, CommunicationOptions):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"`options` = {options!r} are not communication options.",
                    fix="Pass `rx.CommunicationOptions(...)`.",
                )
            )
        return default.merge(options)

    def _require_active(self, call: str) -> None:
        frame = current_frame()
        if frame is not None and frame.replica is cast("Any", self):
            return
        where = "outside of every replica function"
        if frame is not None and frame.replica is not None:
            where = "inside the function of another run"
        elif frame is not None and frame.strategy is not None:
            where = "in cross-replica context"
        raise errors.ContextError(
            errors.describe(
                f"`{call}` of a replica context was called {where}.",
                why="Replicas can only meet while `strategy.run` runs the function that the "
                "context belongs to.",
                fix="Call it inside the function given to `strategy.run`, on the context that "
                "`rx.get_replica_context()` returns there. Across replicas use "
                "`strategy.reduce` or `strategy.gather`.",
            )
        )


def replica_frame() -> Frame | None:
    """The current frame if it is a replica's, else None."""
    frame = current_frame()
    return frame if frame is not None and frame.replica is not None else None


def _plain(value: Any) -> Any:
    if isinstance(value, PerReplica):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"A collective was given {value!r} in replica context.",
                why="There a replica holds its own component only.",
                fix="Pass the value to `strategy.run` as an argument; it arrives unpacked.",
            )
        )
    return value.value if isinstance(value, (Variable, Mirrored)) else value
