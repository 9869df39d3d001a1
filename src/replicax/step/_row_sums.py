"""Sums and means over the real rows of a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax.collectives import EXACT, CommunicationOptions, ReduceOp
from replicax.step._rows import LocalRows, mean_dtype, wide_enough


class RowSums:
    """The part of a replica context that knows which rows are real."""

    _rows: LocalRows

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that take the step together."""
        raise NotImplementedError

    def all_reduce(
        self, op: ReduceOp | str, value: Any, options: CommunicationOptions | None = None
    ) -> Any:
        """Combine the replicas' values; every replica gets the result."""
        raise NotImplementedError

    def global_mean(self, per_row: Any) -> Any:
        """Mean over all real rows of the global batch: the number that one device would give.

        Rows that pad the remainder of a dataset do not count. The gradient on a replica is the
        number of replicas times the replica's share, so that `all_reduce("mean", gradients)` is
        the gradient of one device, uneven batches included.

        Context: replica. Collective: yes.

        Args:
            per_row: f32[B, ...], one value or array for each row of this replica's batch.

        Returns:
            f32[...], mirrored.

        Raises:
            InvalidArgumentError: A scalar, or not one value a row.
        """
        array = self._rows.checked(per_row, "global_mean")
        wide = wide_enough(array)
        total = self._rows.sum_of(wide)
        count = self._rows.static_total(wide.shape[0], self.num_replicas_in_sync)
        if count is None:
            total, rows = self.all_reduce(
                ReduceOp.SUM, (total, self._rows.count(wide.shape[0]).astype(wide.dtype)), EXACT
            )
            mean = total / jax.lax.stop_gradient(rows)
        else:
            mean = self.all_reduce(ReduceOp.SUM, total, EXACT) / count
        return mean.astype(mean_dtype(array.dtype))

    def global_sum(self, per_row: Any) -> Any:
        """Sum over all real rows of the global batch; otherwise like `global_mean`.

        Context: replica. Collective: yes.

        Args:
            per_row: [B, ...], one value or array for each row of this replica's batch.

        Returns:
            [...], mirrored, of the dtype of `jnp.sum`.
        """
        array = self._rows.checked(per_row, "global_sum")
        total = self.all_reduce(ReduceOp.SUM, self._rows.sum_of(wide_enough(array)), EXACT)
        return _narrowed(total, array)

    def local_sum(self, per_row: Any) -> Any:
        """Sum over the real rows of this replica's batch.

        This is what to add to a sync-on-read variable with SUM aggregation: nothing is
        communicated, and the sum over the replicas is taken when the variable is read.

        Context: replica. Collective: no.

        Args:
            per_row: [B, ...], one value or array for each row of this replica's batch.

        Returns:
            [...], varying, of the dtype of `jnp.sum`.

        Examples:
            >>> import numpy as np
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> with strategy.scope():
            ...     total = rx.Variable(0.0, synchronization="on_read", aggregation="sum")
            >>> @rx.function
            ... def add(batch):
            ...     def replica_fn(x):
            ...         total.assign_add(rx.get_replica_context().local_sum(x))
            ...     strategy.run(replica_fn, args=(batch,))
            >>> for batch in strategy.distribute_dataset([np.arange(5.0)]):
            ...     add(batch)
            >>> float(total)
            10.0
        """
        array = self._rows.checked(per_row, "local_sum")
        return _narrowed(self._rows.sum_of(wide_enough(array)), array)


def _narrowed(total: jax.Array, array: jax.Array) -> jax.Array:
    """A sum in the dtype of floating rows; sums of others keep theirs."""
    return total.astype(array.dtype) if jnp.issubdtype(array.dtype, jnp.inexact) else total
