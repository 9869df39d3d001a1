"""Datasets whose elements are shared out over the replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import jax
import numpy as np

from replicax import errors
from replicax.input._options import InputOptions
from replicax.input._split import split_batch
from replicax.values import ReplicaMesh, current_frame


class DistributedDataset:
    """An iterable of global batches as per-replica values.

    `strategy.distribute_dataset` makes it. Each pass over it starts anew if the source can be
    iterated again.

    Args:
        source: Makes an iterator over global batches, trees of arrays `[B, ...]`.
        mesh: The replicas.
        options: Input options.
        num_batches: Number of global batches of a pass, or None if unknown.
    """

    def __init__(
        self,
        source: Callable[[], Iterator[Any]],
        mesh: ReplicaMesh,
        options: InputOptions,
        num_batches: int | None,
    ) -> None:
        self._source, self._mesh, self._options = source, mesh, options
        self._num_batches = num_batches

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
        for step, batch in enumerate(self._source()):
            split = split_batch(batch, self._mesh, self._options.remainder, step)
            if split is not None:
                yield split

    @property
    def num_batches(self) -> int | None:
        """Number of global batches of one pass, or None if unknown."""
        return self._num_batches


def distribute(
    dataset: Any, mesh: ReplicaMesh, options: InputOptions | None = None
) -> DistributedDataset:
    """Share out the global batches of ``dataset``; see `Strategy.distribute_dataset`."""
    options = InputOptions() if options is None else options
    if not isinstance(options, InputOptions):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`options` = {options!r} are not input options.",
                fix="Pass `rx.InputOptions(...)`.",
            )
        )
    if isinstance(dataset, DistributedDataset):
        raise errors.InvalidArgumentError(
            errors.describe(
                "The dataset is distributed already.",
                why="Sharing it out twice would lose rows.",
                fix="Iterate it as it is.",
            )
        )
    if _is_arrays(dataset):
        return _from_arrays(dataset, mesh, options)
    if options.global_batch_size is not None:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`global_batch_size` = {options.global_batch_size} was given for a dataset that "
                f"yields its own batches, a {type(dataset).__name__}.",
                fix="Leave it out, or pass arrays.",
            )
        )
    if not isinstance(dataset, Iterable):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"A {type(dataset).__name__} cannot be distributed as a dataset.",
                fix="Pass arrays, or an iterable of global batches.",
            )
        )
    num_batches = len(dataset) if isinstance(dataset, Sized) else None
    return DistributedDataset(lambda: iter(dataset), mesh, options, num_batches)


def _is_arrays(dataset: Any) -> bool:
    """Whether the dataset is a tree of arrays, not a list of batches or an iterator."""
    if isinstance(dataset, (np.ndarray, jax.Array)):
        return True
    if not isinstance(dataset, (dict, tuple)) or not dataset:
        return False
    return all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in jax.tree.leaves(dataset))


def _from_arrays(arrays: Any, mesh: ReplicaMesh, options: InputOptions) -> DistributedDataset:
    arrays = jax.tree.map(np.asarray, arrays)
    lengths = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(arrays)}
    if len(lengths) > 1:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"The arrays of a dataset have different numbers of rows: {sorted(lengths)}.",
                fix="Pass arrays with one row an example on axis 0.",
            )
        )
    rows = lengths.pop()
    size = options.global_batch_size or max(rows, 1)

    def batches() -> Iterator[Any]:
        for start in range(0, rows, size):
            yield jax.tree.map(lambda leaf: leaf[start : start + size], arrays)  # noqa: B023

    return DistributedDataset(batches, mesh, options, -(-rows // size))
