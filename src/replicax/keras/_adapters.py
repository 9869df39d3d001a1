"""What Keras reads batches from: its own adapters with rows placed, and distributed datasets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicax._threads import Ahead
from replicax.cluster import gather
from replicax.input import DistributedDataset
from replicax.input._agreed import AgreedFeed
from replicax.input._split import HostBatch
from replicax.keras import _compat
from replicax.keras._adopt import strategy_for
from replicax.keras._checks import check_call, check_own_method, check_placed, check_wire_dtype
from replicax.keras._rows import PaddedRows, for_keras, placed_batch, placed_rows
from replicax.values import ReplicaMesh


class PlacedBatches(_compat.DataAdapter):  # type: ignore[misc] # Keras has no types
    """The batches of one of Keras' adapters, shared out over the replicas.

    Args:
        inner: The adapter that Keras chose for the user's data.
        mesh: The replicas.
    """

    def __init__(self, inner: Any, mesh: ReplicaMesh) -> None:
        self._inner, self._mesh = inner, mesh

    def get_jax_iterator(self) -> Iterator[Any]:
        """The batches of an epoch."""
        for batch in self._inner.get_jax_iterator():
            yield for_keras(placed_batch(batch, self._mesh))

    def get_numpy_iterator(self) -> Iterator[Any]:
        """The batches of an epoch on the host."""
        found: Iterator[Any] = self._inner.get_numpy_iterator()
        return found

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch, or None if unknown."""
        count: int | None = self._inner.num_batches
        return count

    @property
    def batch_size(self) -> int | None:
        """Rows of a full global batch, or None if unknown."""
        size: int | None = self._inner.batch_size
        return size

    @property
    def has_partial_batch(self) -> bool:
        """Whether the last batch is shorter."""
        return bool(self._inner.has_partial_batch)

    @property
    def partial_batch_size(self) -> int | None:
        """Rows of the last batch."""
        size: int | None = self._inner.partial_batch_size
        return size

    def on_epoch_begin(self) -> None:
        """Tell the data."""
        self._inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tell the data."""
        self._inner.on_epoch_end()


class KerasDataset(DistributedDataset, _compat.DataAdapter):  # type: ignore[misc]
    """A distributed dataset that Keras' `fit`, `evaluate` and `predict` accept.

    Its batches are `x`, `(x, y)` or `(x, y, sample_weight)`. `strategy.distribute_dataset` makes it
    once Keras has been imported; in every other use it is a `DistributedDataset`.
    """

    _opened: Any = None
    _peeked: tuple[int, Any] | None = None
    _kept: Any = None

    @property
    def num_batches(self) -> int | None:
        """Number of steps of one pass, or None if unknown."""
        call = _compat.trainer_of_this_call()
        if call.given:
            check_call(call.given)
            check_placed(call.model, self._mesh)
            if self._mesh.spans_processes:
                check_own_method(call)
            if call.method == "fit" and call.model is not None:
                check_wire_dtype(strategy_for(call.model))
        return super().num_batches

    def get_jax_iterator(self) -> Iterator[Any]:
        """One pass over the global batches; Keras asks for it once an epoch.

        A pass of which Keras took one batch, to see what it looks like, is begun again.
        """
        epoch, kept = self._next_epoch, self._kept
        if kept is None:
            self._next_epoch = epoch + 1
        else:
            epoch, self._kept = kept[0], None
        batches = self._passing(epoch)
        taken = 0
        first = None
        try:
            if kept is not None and self._feed.is_once:
                taken, first = 1, kept[1]
                yield for_keras(first)
            for batch in batches:
                taken += 1
                first = batch if taken == 1 else None
                yield for_keras(batch)
        except GeneratorExit:
            self._peeked = (epoch, first) if taken == 1 else None
            raise

    def on_epoch_end(self) -> None:
        """Keras has left a pass: after an epoch, or after it has looked at one batch."""
        if self._peeked is not None:
            self._kept, self._peeked = self._peeked, None

    def _passing(self, epoch: int) -> Iterator[Any]:
        if not self._feed.is_once:
            return self._placed(epoch)
        if self._opened is None:
            self._opened = self._placed(0)
        opened: Iterator[Any] = self._opened
        return opened

    def _placed(self, epoch: int) -> Iterator[Any]:
        feed, size = self._feed, self._options.prefetch
        batches = (batch for _, batch in feed.read(epoch, 0))
        if self._mesh.spans_processes or isinstance(feed, AgreedFeed):
            return self._placed_together(batches, size)
        placed = (_global_batch(batch, self._mesh) for batch in batches)
        return Ahead(placed, size) if size else placed

    def _placed_together(self, batches: Iterator[HostBatch], size: int) -> Iterator[Any]:
        """Over several processes: workers meet where batches are taken."""
        feed = self._feed
        ahead = Ahead(batches, size) if size else batches
        while True:
            own = next(ahead, None)
            if isinstance(feed, AgreedFeed):
                own = feed.agreed(own)
            if own is None:
                return
            counts = None
            if own.rows is not None:
                parts = gather("rows of replicas", own.counts.tolist())
                counts = tuple(n for part in parts for n in part)
            yield _global_batch(own, self._mesh, counts)

    @property
    def batch_size(self) -> int | None:
        """Rows of a full global batch, or None if unknown."""
        return None if self.plan is None else self.plan.global_batch_size

    @property
    def has_partial_batch(self) -> bool:
        """Whether the last batch is shorter; not said."""
        return False

    @property
    def partial_batch_size(self) -> int | None:
        """Rows of the last batch; not said."""
        return None


def _global_batch(
    batch: HostBatch, mesh: ReplicaMesh, counts: tuple[int, ...] | None = None
) -> Any:
    """One step's rows as arrays of the global batch."""
    if batch.rows is not None and counts is None:
        counts = tuple(int(n) for n in batch.rows)
    leaves = []
    for stacked in batch.stacked:
        rows = placed_rows(stacked.reshape(-1, *stacked.shape[2:]), mesh)
        leaves.append(rows if counts is None else PaddedRows(rows, counts))
    tree = batch.structure.unflatten(leaves)
    return tuple(tree) if isinstance(tree, list) else tree
