"""Datasets made by a function, whose batches go to the replicas in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from replicax import errors
from replicax.cluster import agree
from replicax.data import Dataset
from replicax.input._agreed import AgreedFeed
from replicax.input._as_elements import from_batches, is_from_library
from replicax.input._distributed import DistributedDataset, made
from replicax.input._facts import facts_of
from replicax.input._options import InputOptions, Remainder, checked_options
from replicax.input._policies import InputReplicationMode
from replicax.input._sources import Elements, is_arrays, refuse_distributed
from replicax.input._split import HostBatch, host_array, refuse_per_replica
from replicax.values import PerReplica, ReplicaMesh

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class InputContext:
    """What a dataset function is told about the input pipeline that it makes.

    Attributes:
        num_input_pipelines: How often the function is called over all machines.
        input_pipeline_id: Number of this call, from 0.
        num_replicas_in_sync: Number of replicas that take each step together.

    Examples:
        >>> import replicax as rx
        >>> rx.InputContext(num_replicas_in_sync=4).get_per_replica_batch_size(32)
        8
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Rows of one replica's batch.

        Raises:
            InvalidArgumentError: The replicas cannot share `global_batch_size` rows evenly, or it
                is no positive integer.
        """
        n = self.num_replicas_in_sync
        is_integer = hasattr(global_batch_size, "__index__")
        if is_integer and global_batch_size >= 1 and global_batch_size % n == 0:
            return int(global_batch_size) // n
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`global_batch_size` = {global_batch_size!r} cannot be shared out evenly over "
                f"{n} replica{'s' if n > 1 else ''}.",
                why="Every replica is to get batches of one size.",
                fix=f"Use a positive integer that {n} divides, or let "
                "`strategy.distribute_dataset` share the rows out; it takes any number of rows.",
            )
        )


def from_function(
    fn: Callable[[InputContext], Any], mesh: ReplicaMesh, options: InputOptions | None = None
) -> DistributedDataset:
    """Call ``fn`` and deal out its batches; see `Strategy.distribute_datasets_from_function`."""
    if not callable(fn):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"distribute_datasets_from_function takes a function, not {fn!r}.",
                fix="Pass a function of one `rx.InputContext` that returns the batches, or use "
                "`strategy.distribute_dataset`.",
            )
        )
    options = checked_options(options)
    if options.global_batch_size is not None:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`global_batch_size` = {options.global_batch_size} was given for a dataset "
                "function, which makes its own batches.",
                fix="Leave it out; the function can call "
                "`context.get_per_replica_batch_size(global_batch_size)`.",
            )
        )
    if options.replication_mode is InputReplicationMode.PER_REPLICA:
        count, ids = mesh.num_replicas, list(mesh.local_replicas)
    else:
        count, ids = mesh.num_processes, [mesh.process_number]
    contexts = [InputContext(count, i, mesh.num_replicas) for i in ids]
    streams = [_checked_batches(fn(context)) for context in contexts]
    rounds = Rounds(streams, mesh.num_local_replicas, options.remainder)
    if not mesh.spans_processes:
        return made(rounds, mesh, options)
    records = agree(
        "distribute_datasets_from_function",
        {"remainder": options.remainder, "is without end": rounds.is_infinite},
        untold={"steps": rounds.num_steps},
    )
    feed = AgreedFeed(rounds, options.remainder, [record["steps"] for record in records])
    return made(feed, mesh, options)


class Rounds:
    """The batches of one stream dealt out in turn, or those of a stream for each replica.

    Args:
        streams: One, or as many as there are replicas.
        num_replicas: Number of replicas.
        remainder: The rule for rounds that are uneven.
    """

    def __init__(
        self, streams: Sequence[Elements], num_replicas: int, remainder: Remainder
    ) -> None:
        self._streams, self._num_replicas, self._remainder = streams, num_replicas, remainder
        self._turns = num_replicas // len(streams)
        endless = [bool(getattr(stream, "is_infinite", False)) for stream in streams]
        self.is_infinite = all(endless) if remainder == "drop" else any(endless)
        self.is_once = any(getattr(stream, "is_once", False) for stream in streams)

    @property
    def num_steps(self) -> int | None:
        """Steps of one epoch, or None if unknown."""
        counts = [stream.num_elements for stream in self._streams]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            return None
        is_dropped = self._remainder == "drop"
        return min(known) // self._turns if is_dropped else -(-max(known) // self._turns)

    def read(self, epoch: int, start: int) -> Iterator[tuple[int, HostBatch]]:
        """The rows of each step from `start` on, and the number of the step after."""
        opened = [stream.open(epoch=epoch, start=start * self._turns) for stream in self._streams]
        for step in itertools.count(start):
            taken = [next(stream, _ENDED) for stream in opened for _ in range(self._turns)]
            if all(batch is _ENDED for batch in taken):
                return
            batch = _split_round(taken, self._remainder, step)
            if batch is not None:
                yield step + 1, batch

    def source_facts(self) -> dict[str, Any]:
        """What a position depends on: also the replicas, which decide how far a step goes."""
        facts = [facts_of(stream) for stream in self._streams]
        if len(facts) > 1:
            facts = [{name: [one[name] for one in facts] for name in facts[0]}]
        return {**facts[0], "replicas": self._num_replicas}


_ENDED = object()
"""Stands for a batch that a stream does not have any more."""


def _checked_batches(batches: Any) -> Elements:
    refuse_distributed(batches)
    refused = (dict, str, bytes, PerReplica)
    is_batches = isinstance(batches, (Iterable, Dataset)) or is_from_library(batches)
    if is_batches and not isinstance(batches, refused) and not is_arrays(batches):
        return from_batches(batches)
    raise errors.ArgumentTypeError(
        errors.describe(
            f"The dataset function returned a {type(batches).__name__}, which is no iterable of "
            f"batches: {batches!r:.80}",
            why="Its elements go to the replicas in turn, each a tree of arrays `[B, ...]`.",
            fix="Return a list, a generator or a dataset object of one replica's batches.",
        )
    )


def _split_round(taken: Sequence[Any], remainder: Remainder, step: int) -> HostBatch | None:
    """Stack one batch a replica.

    Args:
        taken: The batches, or `_ENDED`.
        remainder: The rule for rounds that are uneven.
        step: Number of the round, for messages.

    Returns:
        The rows, or None if no row is left. Where the batches have different numbers of rows, or
        are too few, it knows the number of real rows of each replica; padding repeats a real row.

    Raises:
        InvalidArgumentError: An element is no batch, the batches do not fit together, or they
            are uneven and `remainder` is `"error"`.
    """
    batches = {i: batch for i, batch in enumerate(taken) if batch is not _ENDED}
    trees = {i: [host_array(x) for x in jax.tree.leaves(batch)] for i, batch in batches.items()}
    _check_alike(batches, trees, step)
    structure: Any = jax.tree.structure(next(iter(batches.values())))
    refuse_per_replica(structure, step)
    counts = [trees[i][0].shape[0] if i in trees else 0 for i in range(len(taken))]
    if len(set(counts)) > 1:
        if remainder == "error":
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"The replicas' batches of step {step} have different numbers of rows.",
                    table=errors.Table(("replica", "rows"), list(enumerate(counts))),
                    why="The dataset was distributed with `remainder='error'`.",
                    fix=f"Make batches of one size, and {len(counts)} for every step; or use "
                    "`remainder='mask'` (keeps every row) or 'drop'.",
                )
            )
        if remainder == "drop":
            counts = [min(counts)] * len(counts)
    share = max(counts)
    if share == 0:
        return None
    real = None if min(counts) == share else np.array(counts, np.int32)
    columns = zip(*trees.values(), strict=True)
    return HostBatch(
        structure,
        [_padded(dict(zip(trees, column, strict=True)), counts, share) for column in columns],
        real,
    )


def _padded(column: Mapping[int, Array], counts: Sequence[int], share: int) -> Array:
    """Stack one leaf of the replicas' batches to ``[num_replicas, share, ...]``."""
    row = next(array[:1] for array in column.values() if array.shape[0])
    stacked = np.empty((len(counts), share, *row.shape[1:]), row.dtype)
    # A real row cannot bring a NaN or an infinity that the data does not hold.
    stacked[:] = row
    for replica, array in column.items():
        stacked[replica, : counts[replica]] = array[: counts[replica]]
    return stacked


def _check_alike(
    batches: Mapping[int, Any], trees: Mapping[int, Sequence[Array]], step: int
) -> None:
    """Check that the batches of a step are batches, of one structure and type.

    Raises:
        StructureMismatchError: Their structures differ.
        InvalidArgumentError: A leaf has no rows, or the rows differ in number, shape or dtype.
    """
    structures = {i: str(jax.tree.structure(batch)) for i, batch in batches.items()}
    if len(set(structures.values())) > 1:
        raise errors.StructureMismatchError(
            errors.describe(
                f"The batches of step {step} have different structures.",
                table=errors.Table(("replica", "structure"), list(structures.items())),
                why="They become the components of one tree of per-replica values.",
                fix="Yield the same keys, lengths and types in every batch.",
            )
        )
    lengths = [
        {array.shape[0] if array.ndim else None for array in arrays} for arrays in trees.values()
    ]
    rows = {
        tuple((str(array.dtype), array.shape[1:]) for array in arrays) for arrays in trees.values()
    }
    if len(rows) == 1 and all(len(found) == 1 and None not in found for found in lengths):
        return
    paths = [jax.tree_util.keystr(path) for path, _ in _with_paths(next(iter(batches.values())))]
    raise errors.InvalidArgumentError(
        errors.describe(
            f"The batches of step {step} do not fit together.",
            table=errors.Table(
                ("replica", "leaf", "dtype", "shape"),
                [
                    (replica, f"batch{path}", array.dtype, array.shape)
                    for replica, arrays in trees.items()
                    for path, array in zip(paths, arrays, strict=True)
                ],
            ),
            why="All leaves of a batch must be arrays with one number of rows on axis 0, and rows "
            "of one shape and dtype on all replicas.",
            fix="Batch the dataset to one replica's batch in the function.",
        )
    )


def _with_paths(batch: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = jax.tree_util.tree_leaves_with_path(batch)
    return found
