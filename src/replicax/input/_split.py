"""Share the rows of one batch out over the replicas."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.input._options import Remainder
from replicax.input._words import counted
from replicax.values import PerReplica, ReplicaMesh


def rows_per_replica(rows: int, num_replicas: int) -> list[int]:
    """How many rows each replica gets: equal shares, in order, the last ones shorter.

    Examples:
        >>> rows_per_replica(7, 3), rows_per_replica(2, 4)
        ([3, 3, 1], [1, 1, 0, 0])
    """
    share = -(-rows // num_replicas)
    return [min(share, max(0, rows - i * share)) for i in range(num_replicas)]


@dataclass(frozen=True)
class Seats:
    """The replicas of one input pipeline among all that share a batch.

    Attributes:
        first: Number of the pipeline's first replica.
        count: How many replicas it feeds.
        total: How many replicas share the batch.
        least_share: Rows that every replica's arrays hold at least, with padding.
        even_share: Rows that every replica's arrays hold under `"drop"`; fewer are left out
            altogether. None where a batch is shared by all replicas: as many as there are.
    """

    first: int
    count: int
    total: int
    least_share: int = 0
    even_share: int | None = None

    def shares(self, rows: int, remainder: Remainder) -> tuple[int, list[tuple[int, int]]]:
        """How a batch of `rows` rows is shared out.

        Returns:
            The rows of one replica's array with padding, and for each of the pipeline's replicas
            the first of its real rows and the one after the last.
        """
        if remainder == "drop":
            even = rows // self.total
            if self.even_share is not None:
                even = self.even_share if even >= self.even_share else 0
            rows = even * self.total
        share = -(-rows // self.total)
        edges = [min(rows, i * share) for i in range(self.first, self.first + self.count + 1)]
        pieces = list(itertools.pairwise(edges))
        if rows and remainder != "drop":
            share = max(share, self.least_share)
        return share, pieces


@dataclass(frozen=True)
class HostBatch:
    """One step's rows of this process's replicas, on the host.

    Attributes:
        structure: The tree of the batch.
        stacked: Its leaves, `[num_replicas, B, ...]`; they share no memory with the dataset.
        rows: i32[num_replicas] numbers of real rows, or None if no array is padded.
    """

    structure: Any
    stacked: list[np.ndarray[Any, Any]]
    rows: np.ndarray[Any, Any] | None

    @property
    def share(self) -> int:
        """Rows of one replica's array, with padding."""
        return self.stacked[0].shape[1] if self.stacked else 0

    @property
    def counts(self) -> np.ndarray[Any, Any]:
        """i32[num_replicas], the numbers of real rows."""
        if self.rows is not None:
            return self.rows
        return np.full(self.stacked[0].shape[0] if self.stacked else 0, self.share, np.int32)

    def place(self, mesh: ReplicaMesh) -> Any:
        """Put row `i` of every leaf on replica `i`: the tree with `PerReplica` leaves."""
        rows: Any = self.rows
        if rows is not None and mesh.spans_processes:
            rows = _on_replicas(rows, mesh)
        return self.structure.unflatten(
            [PerReplica.from_stacked(_on_replicas(x, mesh), rows) for x in self.stacked]
        )


def _on_replicas(stacked: np.ndarray[Any, Any], mesh: ReplicaMesh) -> jax.Array:
    # A third of the time that `jax.device_put` takes with a sharding.
    if mesh.spans_processes:
        first = mesh.local_replicas[0]
        return jax.make_array_from_callback(
            (mesh.num_replicas, *stacked.shape[1:]),
            mesh.stacked,
            lambda index: stacked[(index or ())[0].start - first][None],
        )
    return jax.make_array_from_callback(
        stacked.shape, mesh.stacked, lambda index: stacked[index or ()]
    )


def cut(batch: Any, seats: Seats, remainder: Remainder, step: int) -> HostBatch | None:
    """Take the rows of a pipeline's replicas out of a batch.

    Args:
        batch: A tree of arrays `[B, ...]`.
        seats: Whose rows to take.
        remainder: The rule for batches that do not divide evenly.
        step: Number of the batch, for messages.

    Returns:
        The rows, or None if no replica of any pipeline gets one. Padding repeats the first row.

    Raises:
        InvalidArgumentError: The leaves have different numbers of rows, or none; or the batch is
            uneven and `remainder` is `"error"`.
    """
    structure: Any
    leaves, structure = jax.tree.flatten(batch)
    refuse_per_replica(structure, step)
    arrays = [host_array(leaf) for leaf in leaves]
    rows = row_count(batch, arrays, step)
    if rows % seats.total and remainder == "error":
        raise errors.InvalidArgumentError(
            errors.describe(
                f"Global batch {step} has {counted(rows, 'row')}, which {seats.total} replicas "
                "cannot share evenly.",
                why="The dataset was distributed with `remainder='error'`.",
                fix=f"Use a batch size divisible by {seats.total}, or `remainder='mask'` (keeps "
                "every row) or 'drop'.",
            )
        )
    share, pieces = _shares(seats, rows, remainder)
    if share == 0:
        return None
    # Where another pipeline's rows are padded, this one's carry their counts as well.
    real = None
    if share * seats.total > rows:
        real = np.array([last - first for first, last in pieces], np.int32)
    return HostBatch(structure, [_stacked(array, pieces, share) for array in arrays], real)


# Most batches have one number of rows.
_shares = functools.lru_cache(maxsize=64)(Seats.shares)


def _stacked(
    array: np.ndarray[Any, Any], pieces: Sequence[tuple[int, int]], share: int
) -> np.ndarray[Any, Any]:
    """A new array ``[num_replicas, share, ...]`` of the pieces, padded with the first row."""
    shape = (len(pieces), share, *array.shape[1:])
    (low, _), (_, high) = pieces[0], pieces[-1]
    if high - low == len(pieces) * share:
        return array[low:high].copy().reshape(shape)
    stacked = np.empty(shape, array.dtype)
    for target, (first, last) in zip(stacked, pieces, strict=True):
        target[: last - first] = array[first:last]
        # A real row cannot bring a NaN or an infinity that the data does not hold.
        target[last - first :] = array[:1]
    return stacked


# NumPy's dtypes that JAX takes as they are, whatever its settings.
_KEPT_DTYPES = frozenset(
    np.dtype(name)
    for name in ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float32")
)


def host_array(leaf: Any) -> np.ndarray[Any, Any]:
    """An array on the host, of a dtype that devices hold.

    Raises:
        ArgumentTypeError: It holds strings, objects or PRNG keys.
        ContextError: It is traced.
        InvalidArgumentError: It holds integers that devices cannot hold.
    """
    if type(leaf) is np.ndarray and leaf.dtype in _KEPT_DTYPES:
        return leaf
    if isinstance(leaf, jax.core.Tracer):
        raise errors.ContextError(
            errors.describe(
                f"A dataset inside `rx.function` or `jax.jit` holds a traced array, {leaf}.",
                why="Its rows have no values while the function is traced.",
                fix="Distribute the dataset outside and pass each batch to the step.",
            )
        )
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    array = np.asarray(None if is_key else leaf)
    if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"A batch of the dataset holds {leaf!r}, which is no array of numbers.",
                why="It has dtype "
                f"{leaf.dtype if is_key else array.dtype}, which devices cannot hold.",
                fix="Encode strings and objects as numbers and PRNG keys as "
                "`jax.random.key_data(key)` before distributing the dataset.",
            )
        )
    # What JAX would do to them as well, once and before they are sent.
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    found = array.astype(dtype, copy=False)
    if found is not array and array.dtype.kind in "iu" and not np.array_equal(found, array):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"A batch of the dataset holds {array.dtype} numbers from {array.min()} to "
                f"{array.max()}, which {dtype} cannot hold.",
                why="JAX keeps integers in 32 bits unless `jax_enable_x64` is on; others would "
                "become wrong ones.",
                fix="Make them smaller before distributing the dataset, or call "
                '`jax.config.update("jax_enable_x64", True)`.',
            )
        )
    return found


@functools.lru_cache(maxsize=64)
def _holds_per_replica(structure: Any) -> bool:
    inner = structure.node_data()
    if inner is not None and inner[0] is PerReplica:
        return True
    return any(_holds_per_replica(child) for child in structure.children())


def refuse_per_replica(structure: Any, step: int) -> None:
    """Refuse batches that were shared out before, whose replicas would be taken for rows.

    Raises:
        InvalidArgumentError: The tree holds per-replica values.
    """
    if _holds_per_replica(structure):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"Element {step} of the dataset holds per-replica values: {structure!s:.200}",
                why="Its rows are shared out over replicas already.",
                fix="Pass these batches to the step as they are.",
            )
        )


def row_count(batch: Any, arrays: Sequence[np.ndarray[Any, Any]], step: int) -> int:
    """The number of rows that all arrays of a batch have.

    Raises:
        InvalidArgumentError: They differ, or an array has no axis.
    """
    lengths = {array.shape[0] if array.ndim else None for array in arrays}
    if len(lengths) == 1 and None not in lengths:
        return int(next(iter(lengths)) or 0)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch)]
    rows = [(f"batch{path}", array.shape) for path, array in zip(paths, arrays, strict=True)]
    raise errors.InvalidArgumentError(
        errors.describe(
            f"Element {step} of the dataset is not a global batch.",
            table=errors.Table(("leaf", "shape"), rows),
            why="All its leaves must be arrays with one number of rows on axis 0, which is shared "
            "out over the replicas.",
            fix="Batch the dataset to the global batch before distributing it.",
        )
    )
