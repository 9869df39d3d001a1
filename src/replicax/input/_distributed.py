"""Datasets whose elements are shared out over the replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import jax
import numpy as np

from replicax import errors
from replicax.input._options import InputOptions, Remainder, checked_options
from replicax.input._split import host_array, split_batch
from replicax.values import PerReplica, ReplicaMesh, current_frame


class DistributedDataset:
    """An iterable of global batches as per-replica values.

    `strategy.distribute_dataset` makes it. Each pass over it starts anew if the source can be
    iterated again.

    Args:
        source: Makes an iterator over global batches, trees of arrays `[B, ...]`.
        mesh: The replicas.
        options: Input options.
        num_batches: Number of global batches of a pass, or None if unknown.
        is_iterator: Whether the source can be iterated only once.
        split: Turns an element of the source into per-replica values, or None if no row is left;
            called with the element, the mesh, the rule for remainders and the number of the step.
    """

    def __init__(
        self,
        source: Callable[[], Iterator[Any]],
        mesh: ReplicaMesh,
        options: InputOptions,
        num_batches: int | None,
        *,
        is_iterator: bool = False,
        split: Callable[[Any, ReplicaMesh, Remainder, int], Any] = split_batch,
    ) -> None:
        self._source, self._mesh, self._options = source, mesh, options
        self._num_batches, self._split = num_batches, split
        self._is_iterator, self._used_up = is_iterator, False

    def __iter__(self) -> Iterator[Any]:
        frame = current_frame()
        if frame is not None and frame.replica is not None:
            raise errors.ContextError(
                errors.describe(
                    "A distributed dataset was iterated in replica context.",
                    fix="Take the batch outside and pass it in: "
                    "`strategy.run(replica_fn, args=(batch,))`.",
                )
            )
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
        batches = self._source()
        for step, batch in enumerate(batches):
            split = self._split(batch, self._mesh, self._options.remainder, step)
            if split is not None:
                yield split
        self._used_up = self._is_iterator

    def __repr__(self) -> str:
        count = "an unknown number of" if self._num_batches is None else self._num_batches
        return (
            f"<DistributedDataset of {count} global batches on {self._mesh.num_replicas} replicas>"
        )

    @property
    def num_batches(self) -> int | None:
        """Number of global batches of one pass, or None if unknown."""
        return self._num_batches


def distribute(
    dataset: Any, mesh: ReplicaMesh, options: InputOptions | None = None
) -> DistributedDataset:
    """Share out the global batches of ``dataset``; see `Strategy.distribute_dataset`."""
    options = checked_options(options)
    if isinstance(dataset, DistributedDataset):
        raise errors.InvalidArgumentError(
            errors.describe(
                "The dataset is distributed already.",
                why="Sharing it out twice would lose rows.",
                fix="Iterate it as it is.",
            )
        )
    if is_arrays(dataset):
        return _from_arrays(dataset, mesh, options)
    if options.global_batch_size is not None:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`global_batch_size` = {options.global_batch_size} was given for a dataset that "
                f"yields its own batches, a {type(dataset).__name__}.",
                fix="Leave it out, or pass arrays.",
            )
        )
    if not isinstance(dataset, Iterable) or isinstance(dataset, (dict, str, bytes, PerReplica)):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"A {type(dataset).__name__} cannot be distributed as a dataset: {dataset!r:.80}",
                fix="Pass an array, a dict or tuple of arrays with one row an example, or an "
                "iterable of global batches.",
            )
        )
    num_batches = len(dataset) if isinstance(dataset, Sized) else None
    once = isinstance(dataset, Iterator)
    return DistributedDataset(lambda: iter(dataset), mesh, options, num_batches, is_iterator=once)


def is_arrays(dataset: Any) -> bool:
    """Whether the dataset is a tree of arrays, not a list of batches or an iterator."""
    if isinstance(dataset, (np.ndarray, jax.Array)):
        return True
    if not isinstance(dataset, (dict, tuple)) or not dataset:
        return False
    return all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in jax.tree.leaves(dataset))


def _from_arrays(arrays: Any, mesh: ReplicaMesh, options: InputOptions) -> DistributedDataset:
    arrays = jax.tree.map(host_array, arrays)
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    lengths = {leaf.shape[0] if leaf.ndim else None for _, leaf in leaves}
    if len(lengths) > 1 or None in lengths:
        shapes = [(f"dataset{jax.tree_util.keystr(path)}", leaf.shape) for path, leaf in leaves]
        raise errors.InvalidArgumentError(
            errors.describe(
                "The arrays of a dataset do not have one number of rows.",
                table=errors.Table(("array", "shape"), shapes),
                fix="Pass arrays with one row an example on axis 0.",
            )
        )
    rows = lengths.pop() or 0
    size = options.global_batch_size or max(rows, 1)

    def batches() -> Iterator[Any]:
        for start in range(0, rows, size):
            yield jax.tree.map(lambda leaf: leaf[start : start + size], arrays)  # noqa: B023

    is_last_dropped = options.remainder == "drop" and rows % size < mesh.num_replicas
    num_batches = rows // size if is_last_dropped else -(-rows // size)
    return DistributedDataset(batches, mesh, options, num_batches)
