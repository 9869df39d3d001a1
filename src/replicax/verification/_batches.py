"""Batches to look at, taken from a dataset whose place stays what it is."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from replicax.errors import ArgumentTypeError, FailedPreconditionError, describe
from replicax.input import DistributedDataset, DistributedIterator, InputPlan
from replicax.strategies import Strategy
from replicax.values import PerReplica, ReplicaMesh

from ._state import Array, NotComparable


@dataclasses.dataclass(frozen=True)
class Batches:
    """What was taken.

    Attributes:
        first: The first batches of the epoch that comes next, as the step gets them.
        last: The last batch of the epoch, where its rows are shared otherwise; else None.
        waits: Seconds that taking each of `first` took.
        plan: The input plan, where there is one.
        dataset: The distributed dataset, where there is one.
        epoch: Number of the epoch.
    """

    first: tuple[Any, ...]
    last: Any
    waits: tuple[float, ...]
    plan: InputPlan | None
    dataset: DistributedDataset | None
    epoch: int = 0


def taken(strategy: Strategy, dataset: Any, count: int) -> Batches:
    """Takes batches; afterwards the dataset or iterator is where it was.

    Args:
        strategy: The strategy.
        dataset: A distributed dataset, an iterator of one, a list of batches as the step gets
            them, or what else `strategy.distribute_dataset` takes.
        count: How many.
    """
    if isinstance(dataset, DistributedIterator):
        return _of_iterator(dataset, count)
    if not isinstance(dataset, DistributedDataset):
        if isinstance(dataset, list):  # As a loop over it would take them.
            return Batches(tuple(dataset[:count]), None, (), None, None)
        dataset = strategy.distribute_dataset(dataset)
    if dataset._feed.is_once:
        raise FailedPreconditionError(
            describe(
                f"{dataset!r} can be read only once, so looking at it would lose rows.",
                fix="Distribute something that can be iterated again, or pass an iterator, "
                "`iter(dataset)`: what is taken from it is put back.",
            )
        )
    return _of_dataset(dataset, count)


def _of_iterator(iterator: DistributedIterator, count: int) -> Batches:
    found, waits = [], []
    for _ in range(count):
        start = time.perf_counter()
        one = iterator.take(is_optional=True)
        if one[0] is None:
            break
        waits.append(time.perf_counter() - start)
        found.append(one)
    for one in reversed(found):
        iterator.put_back(one)
    batches = tuple(batch for batch, *_ in found)
    return Batches(
        batches, None, tuple(waits), iterator.plan, iterator._dataset, epoch=iterator.epoch
    )


def _of_dataset(dataset: DistributedDataset, count: int) -> Batches:
    epoch, position, used_up = dataset._next_epoch, dataset._shared_position, dataset._used_up
    first, waits, last = [], [], None
    iterator = DistributedIterator(dataset, epoch=epoch, step=0)
    for _ in range(count):
        start = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            break
        waits.append(time.perf_counter() - start)
        first.append(batch)
    iterator.close()
    steps = dataset.num_batches
    if steps is not None and steps > len(first):
        iterator = DistributedIterator(dataset, epoch=epoch, step=steps - 1)
        last = next(iterator, None)
        iterator.close()
    elif first:
        last = first[-1]
    if last is not None and not (first and _is_uneven(last, first[0])):
        last = None
    dataset._shared_position, dataset._used_up = position, used_up
    return Batches(tuple(first), last, tuple(waits), dataset.plan, dataset, epoch)


def _is_uneven(last: Any, first: Any) -> bool:
    """Whether the program or the shares of a batch are other ones."""
    shapes = [[(x.shape, x.dtype) for x in jax.tree.leaves(batch)] for batch in (last, first)]
    return shapes[0] != shapes[1]


# -- the same rows for others ----------------------------------------------------------------------


class Rows:
    """The rows of one batch, on the host, without padding.

    Args:
        batch: A tree with per-replica leaves.
        mesh: The replicas. Collective where it spans processes.

    Attributes:
        counts: Real rows of each replica, of the leaf that has most; None where no leaf has rows.
    """

    def __init__(self, batch: Any, mesh: ReplicaMesh) -> None:
        structure: Any
        leaves, structure = jax.tree.flatten(batch, is_leaf=lambda x: isinstance(x, PerReplica))
        self._structure = structure
        self._leaves = [
            _components(leaf, mesh) if isinstance(leaf, PerReplica) else leaf for leaf in leaves
        ]
        counts = [
            tuple(len(x) for x in parts)
            for parts in self._leaves
            if isinstance(parts, _Parts) and all(x.ndim for x in parts)
        ]
        self.counts = max(counts, key=sum) if counts else None
        self.are_alike = len(set(counts)) <= 1

    def for_one(self, one: ReplicaMesh) -> Any:
        """The global batch for a strategy of one replica."""
        return self._placed(one, _joined)

    def reversed(self, one: ReplicaMesh) -> Any:
        """The same with the rows in reverse order; None where leaves have other rows."""
        if not self.are_alike or self.counts is None or sum(self.counts) < 2:  # noqa: PLR2004
            return None
        return self._placed(one, lambda parts: _joined(parts)[::-1])

    def repeated(self, mesh: ReplicaMesh) -> tuple[Rows, Any]:
        """A batch of which all rows are the first one; None where replicas hold other numbers."""
        if self.counts is None or len(set(self.counts)) != 1 or mesh.spans_processes:
            return self, None
        made = [
            PerReplica.from_stacked(mesh.place_stacked(np.stack([_first_rows(leaf)] * len(leaf))))
            if isinstance(leaf, _Parts)
            else leaf
            for leaf in self._leaves
        ]
        batch = self._structure.unflatten(made)
        return Rows(batch, mesh), batch

    def of_replica(self, number: int, one: ReplicaMesh) -> Any:
        """The rows of one replica, for a strategy of one replica."""
        return self._placed(one, lambda parts: parts[number])

    def of_replicas(self) -> list[list[Array]]:
        """For each leaf that is per replica, the component of each replica."""
        return [list(parts) for parts in self._leaves if isinstance(parts, _Parts)]

    def _placed(self, one: ReplicaMesh, choose: Callable[[Sequence[Array]], Array]) -> Any:
        made = [
            PerReplica.from_stacked(one.place_stacked(np.ascontiguousarray(choose(leaf)[None])))
            if isinstance(leaf, _Parts)
            else leaf
            for leaf in self._leaves
        ]
        return self._structure.unflatten(made)


class _Parts(tuple[Array, ...]):
    """The component of each replica."""

    __slots__ = ()


def _components(value: PerReplica, mesh: ReplicaMesh) -> _Parts:
    if not mesh.spans_processes or value.stacked is None:
        return _Parts(np.asarray(x) for x in value.values)
    stacked = np.asarray(mesh.all_rows(value.stacked))
    if value.rows is None:
        return _Parts(stacked)
    counts = np.asarray(mesh.all_rows(value.rows))
    return _Parts(x[:k] for x, k in zip(stacked, counts, strict=True))


def _first_rows(parts: Sequence[Array]) -> Array:
    first = parts[0]
    return np.repeat(first[:1], len(first), axis=0) if first.ndim else first


def _joined(parts: Sequence[Array]) -> Array:
    """The rows of all replicas, in order."""
    if all(x.ndim for x in parts):
        return np.concatenate(parts)
    if all(np.array_equal(x, parts[0]) for x in parts):
        return parts[0]
    raise NotComparable("the batch holds values of each replica that have no rows")


def require_strategy(strategy: Any) -> None:
    """Check the first argument of `rx.verify`.

    Raises:
        ArgumentTypeError: It is no strategy.
    """
    if not isinstance(strategy, Strategy):
        raise ArgumentTypeError(
            describe(
                f"`strategy={strategy!r:.100}` is no strategy.",
                fix="pass the strategy that the step runs on.",
            )
        )
