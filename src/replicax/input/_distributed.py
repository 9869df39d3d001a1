"""Datasets whose elements are shared out over the replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import jax

from replicax import _integrations, errors
from replicax.input._agreed import AgreedFeed, agree_on_plan
from replicax.input._ahead import Batches
from replicax.input._announcement import announce
from replicax.input._iterator import DistributedIterator, require_outside
from replicax.input._options import InputOptions, checked_options
from replicax.input._plan import InputPlan, plan_input
from replicax.input._sources import Distributed
from replicax.input._split import HostBatch
from replicax.values import ReplicaMesh

INFINITE = -1
"""The `cardinality` of a dataset without end."""

UNKNOWN = -2
"""The `cardinality` of a dataset whose number of steps is not known."""


class Feed(Protocol):
    """What a distributed dataset reads: an `InputPlan`, or the batches of a dataset function."""

    @property
    def num_steps(self) -> int | None:
        """Steps of one epoch, or None if unknown or without end."""

    @property
    def is_infinite(self) -> bool:
        """Whether an epoch is known to have no end."""

    @property
    def is_once(self) -> bool:
        """Whether it can be read only once."""

    def read(self, epoch: int, start: int) -> Iterator[tuple[int, HostBatch]]:
        """The rows of each step from `start` on, and the number of the step after."""

    def source_facts(self) -> dict[str, Any]:
        """What a position depends on."""


class DistributedDataset(Distributed):
    """An iterable of global batches as per-replica values.

    `strategy.distribute_dataset` makes it. Each pass over it is an epoch: the first one is epoch
    0, the next one epoch 1, each in its own order where the source is shuffled.

    Args:
        feed: Where the steps come from.
        mesh: The replicas.
        options: Input options.
        plan: Which rows each replica reads, or None if a dataset function decides.

    Attributes:
        plan: The same.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> dataset = rx.data.from_arrays(np.arange(6)).shuffle(seed=0).batch(4)
        >>> dataset = strategy.distribute_dataset(dataset)
        >>> len(dataset), dataset.element_spec
        (2, ShapeDtypeStruct(shape=(2,), dtype=int32))
        >>> batches = iter(dataset)
        >>> _ = next(batches)
        >>> state = batches.get_state()  # JSON; a checkpoint takes `batches` itself
        >>> resumed = iter(dataset)
        >>> resumed.set_state(state)
        >>> strategy.local_results(next(resumed)) == strategy.local_results(next(batches))
        True
    """

    def __init__(
        self,
        feed: Feed,
        mesh: ReplicaMesh,
        options: InputOptions,
        plan: InputPlan | None = None,
    ) -> None:
        self._feed, self._mesh, self._options = feed, mesh, options
        self.plan = plan
        self._next_epoch = 0
        self._shared: Batches | None = None
        self._shared_position = 0
        self._used_up = False

    def __iter__(self) -> DistributedIterator:
        require_outside("iterated")
        if self._used_up:
            raise errors.OutOfRangeError(
                errors.describe(
                    "The dataset was iterated to its end before, and its source cannot start anew.",
                    why="The source is an iterator, such as a generator: a second epoch would have "
                    "no steps.",
                    fix="Distribute something that can be iterated again, such as a list or a "
                    "dataset object, or distribute a new iterator for each epoch.",
                )
            )
        if self._feed.is_once:  # Goes on where the last iterator stopped.
            return DistributedIterator(self, epoch=0, step=self._shared_position)
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return DistributedIterator(self, epoch=epoch, step=0)

    # -- facts ------------------------------------------------------------------

    @property
    def num_batches(self) -> int | None:
        """Number of steps of one pass, or None if unknown."""
        return self._feed.num_steps

    @property
    def cardinality(self) -> int:
        """Number of steps of one pass; `rx.input.INFINITE` or `rx.input.UNKNOWN` otherwise."""
        if self._feed.is_infinite:
            return INFINITE
        return UNKNOWN if self.num_batches is None else self.num_batches

    def __len__(self) -> int:
        if self.num_batches is not None:
            return self.num_batches
        raise errors.ArgumentTypeError(
            errors.describe(
                f"{self!r} has no length.",
                why="It has no end."
                if self._feed.is_infinite
                else "Its source does not tell how many batches it has.",
                fix="Look at `cardinality`, or distribute something with a length.",
            )
        )

    def __bool__(self) -> bool:
        return True  # Without it, `if dataset:` would ask for the length.

    @property
    def element_spec(self) -> Any:
        """The tree of a batch with the shape and dtype of one replica's component.

        The first batch is read for it, and the shape is that of this batch, with padding.

        Returns:
            The tree with `jax.ShapeDtypeStruct` leaves.

        Raises:
            FailedPreconditionError: The source can be read only once.
            OutOfRangeError: The dataset is empty.
        """
        require_outside("asked for its elements")
        if self._feed.is_once:
            raise errors.FailedPreconditionError(
                errors.describe(
                    "The elements of the dataset are not known before they are read.",
                    why="Its source is an iterator, and the first batch would be lost.",
                    fix="Distribute something that can be iterated again, or look at a batch.",
                )
            )
        first = next(self._feed.read(0, 0), None)
        if first is None:
            raise errors.OutOfRangeError(
                errors.describe("The dataset has no elements whose shapes could be told.")
            )
        _, batch = first
        specs = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in batch.stacked]
        return batch.structure.unflatten(specs)

    def __repr__(self) -> str:
        count = "an unknown number of" if self.num_batches is None else self.num_batches
        count = "endlessly many" if self._feed.is_infinite else count
        return (
            f"<DistributedDataset of {count} global batches on {self._mesh.num_replicas} replicas>"
        )


_KINDS: list[type[DistributedDataset]] = [DistributedDataset]


def register_dataset_class(kind: type[DistributedDataset]) -> None:
    """Make distributed datasets of this class from now on: of one that a model library accepts."""
    _KINDS.append(kind)


def made(
    feed: Feed, mesh: ReplicaMesh, options: InputOptions, plan: InputPlan | None = None
) -> DistributedDataset:
    """A distributed dataset, of the class that the imported libraries ask for."""
    _integrations.load()
    dataset = _KINDS[-1](feed, mesh, options, plan)
    announce(dataset)
    return dataset


def distribute(
    dataset: Any, mesh: ReplicaMesh, options: InputOptions | None = None
) -> DistributedDataset:
    """Share out the global batches of ``dataset``; see `Strategy.distribute_dataset`."""
    options = checked_options(options)
    if options.replication_mode != InputOptions().replication_mode:
        raise errors.UnimplementedError(
            errors.describe(
                "`replication_mode` = PER_REPLICA is not for `distribute_dataset`.",
                why="One dataset is shared out over the replicas row by row; there is no pipeline "
                "of each replica's own.",
                fix="Leave it out, or use `strategy.distribute_datasets_from_function`.",
            )
        )
    plan = plan_input(
        dataset, mesh.num_local_replicas, options, mesh.num_processes, mesh.process_number
    )
    feed: Feed = plan
    if mesh.spans_processes:
        counts = agree_on_plan(plan)
        if not plan.is_known_to_all:
            feed = AgreedFeed(plan, plan.remainder, counts)
    return made(feed, mesh, options, plan)
