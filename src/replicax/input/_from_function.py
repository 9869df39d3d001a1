"""Datasets made by a function, whose batches go to the replicas in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jax
import numpy as np

from replicax import errors
from replicax.input._distributed import DistributedDataset, is_arrays
from replicax.input._options import InputOptions, Remainder, checked_options
from replicax.input._split import host_array, put_stacked
from replicax.values import PerReplica, ReplicaMesh


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
    n = mesh.num_replicas
    batches = _checked_batches(fn(InputContext(num_replicas_in_sync=n)))

    def rounds() -> Iterator[list[Any]]:
        iterator = iter(batches)
        while taken := list(islice(iterator, n)):
            yield taken

    num_batches = None
    if isinstance(batches, Sized):
        num_batches = len(batches) // n if options.remainder == "drop" else -(-len(batches) // n)
    once = isinstance(batches, Iterator)
    return DistributedDataset(
        rounds, mesh, options, num_batches, is_iterator=once, split=_split_round
    )


def _checked_batches(batches: Any) -> Iterable[Any]:
    refused = (dict, str, bytes, PerReplica, DistributedDataset)
    is_iterable = isinstance(batches, Iterable) and not isinstance(batches, refused)
    if is_iterable and not is_arrays(batches):
        found: Iterable[Any] = batches
        return found
    raise errors.ArgumentTypeError(
        errors.describe(
            f"The dataset function returned a {type(batches).__name__}, which is no iterable of "
            f"batches: {batches!r:.80}",
            why="Its elements go to the replicas in turn, each a tree of arrays `[B, ...]`.",
            fix="Return a list, a generator or a dataset object of one replica's batches.",
        )
    )


def _split_round(batches: Sequence[Any], mesh: ReplicaMesh, remainder: Remainder, step: int) -> Any:
    """Turn up to one batch a replica into per-replica values on the replicas' devices.

    Returns:
        The tree with `PerReplica` leaves, or None if no row is left. Where the batches have
        different numbers of rows, or are too few, it carries the number of real rows of each
        replica; padding repeats a real row.

    Raises:
        InvalidArgumentError: An element is no batch, the batches do not fit together, or they
            are uneven and `remainder` is `"error"`.
    """
    structure: Any
    _, structure = jax.tree.flatten(batches[0])
    trees = [[host_array(leaf) for leaf in jax.tree.leaves(batch)] for batch in batches]
    _check_alike(batches, trees, step)
    counts = [arrays[0].shape[0] for arrays in trees]
    counts += [0] * (mesh.num_replicas - len(counts))
    if len(set(counts)) > 1:
        if remainder == "error":
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"The replicas' batches of step {step} have different numbers of rows.",
                    table=errors.Table(("replica", "rows"), list(enumerate(counts))),
                    why="The dataset was distributed with `remainder='error'`.",
                    fix=f"Make batches of one size, and {mesh.num_replicas} for every step; or use "
                    "`remainder='mask'` (keeps every row) or 'drop'.",
                )
            )
        if remainder == "drop":
            counts = [min(counts)] * mesh.num_replicas
    share = max(counts)
    if share == 0:
        return None
    real = None if min(counts) == share else np.array(counts, np.int32)
    columns = zip(*trees, strict=True)
    return structure.unflatten(
        [
            PerReplica.from_stacked(put_stacked(_padded(column, counts, share), mesh), real)
            for column in columns
        ]
    )


def _padded(
    column: Sequence[np.ndarray[Any, Any]], counts: Sequence[int], share: int
) -> np.ndarray[Any, Any]:
    """Stack one leaf of the batches to ``[num_replicas, share, ...]``."""
    row = next(array[:1] for array in column if array.shape[0])
    stacked = np.empty((len(counts), share, *row.shape[1:]), row.dtype)
    # A real row cannot bring a NaN or an infinity that the data does not hold.
    stacked[:] = row
    for target, array, count in zip(stacked, column, counts, strict=False):
        target[:count] = array[:count]
    return stacked


def _check_alike(
    batches: Sequence[Any], trees: Sequence[Sequence[np.ndarray[Any, Any]]], step: int
) -> None:
    """Check that the batches of a step are batches, of one structure and type.

    Raises:
        StructureMismatchError: Their structures differ.
        InvalidArgumentError: A leaf has no rows, or the rows differ in number, shape or dtype.
    """
    structures = [str(jax.tree.structure(batch)) for batch in batches]
    if len(set(structures)) > 1:
        raise errors.StructureMismatchError(
            errors.describe(
                f"The batches of step {step} have different structures.",
                table=errors.Table(("replica", "structure"), list(enumerate(structures))),
                why="They become the components of one tree of per-replica values.",
                fix="Yield the same keys, lengths and types in every batch.",
            )
        )
    lengths = [{array.shape[0] if array.ndim else None for array in arrays} for arrays in trees]
    rows = {tuple((str(array.dtype), array.shape[1:]) for array in arrays) for arrays in trees}
    if len(rows) == 1 and all(len(found) == 1 and None not in found for found in lengths):
        return
    paths = [jax.tree_util.keystr(path) for path, _ in _with_paths(batches[0])]
    raise errors.InvalidArgumentError(
        errors.describe(
            f"The batches of step {step} do not fit together.",
            table=errors.Table(
                ("replica", "leaf", "dtype", "shape"),
                [
                    (replica, f"batch{path}", array.dtype, array.shape)
                    for replica, arrays in enumerate(trees)
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
