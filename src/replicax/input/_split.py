"""Share the rows of one global batch out over the replicas."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.input._options import Remainder
from replicax.values import PerReplica, ReplicaMesh


def rows_per_replica(rows: int, num_replicas: int) -> list[int]:
    """How many rows each replica gets: equal shares, in order, the last ones shorter.

    Examples:
        >>> rows_per_replica(7, 3), rows_per_replica(2, 4)
        ([3, 3, 1], [1, 1, 0, 0])
    """
    share = -(-rows // num_replicas)
    return [min(share, max(0, rows - i * share)) for i in range(num_replicas)]


def split_batch(batch: Any, mesh: ReplicaMesh, remainder: Remainder, step: int) -> Any:
    """Turn a global batch into per-replica values on the replicas' devices.

    Args:
        batch: A tree of arrays `[B, ...]`.
        mesh: The replicas.
        remainder: The rule for batches that do not divide evenly.
        step: Number of the batch, for messages.

    Returns:
        The tree with `PerReplica` leaves, or None if no row is left. A padded batch carries the
        number of real rows of each replica; padding repeats the batch's first row.

    Raises:
        InvalidArgumentError: The leaves have different numbers of rows, or none; or the batch is
            uneven and `remainder` is `"error"`.
    """
    structure: Any
    leaves, structure = jax.tree.flatten(batch)
    arrays = [host_array(leaf) for leaf in leaves]
    rows = _row_count(batch, arrays, step)
    n = mesh.num_replicas
    if rows % n:
        if remainder == "error":
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"Global batch {step} has {rows} rows, which {n} replicas cannot share evenly.",
                    why="The dataset was distributed with `remainder='error'`.",
                    fix=f"Use a batch size divisible by {n}, or `remainder='mask'` (keeps every "
                    "row) or 'drop'.",
                )
            )
        if remainder == "drop":
            rows -= rows % n
            arrays = [array[:rows] for array in arrays]
    if rows == 0:
        return None
    counts = rows_per_replica(rows, n)
    share = counts[0]
    real = None if share * n == rows else np.array(counts, np.int32)
    return structure.unflatten(
        [PerReplica.from_stacked(_placed(array, share, mesh), real) for array in arrays]
    )


def _placed(array: np.ndarray[Any, Any], share: int, mesh: ReplicaMesh) -> jax.Array:
    """Put rows ``[i * share, (i + 1) * share)`` on replica ``i``, padded with the first row."""
    n, rows = mesh.num_replicas, array.shape[0]
    if rows < share * n:
        # A real row cannot bring a NaN or an infinity that the data does not hold.
        padding = np.broadcast_to(array[:1], (share * n - rows, *array.shape[1:]))
        array = np.concatenate([array, padding])
    return put_stacked(array.reshape((n, share, *array.shape[1:])), mesh)


def put_stacked(stacked: np.ndarray[Any, Any], mesh: ReplicaMesh) -> jax.Array:
    """Put row ``i`` of an array ``[num_replicas, ...]`` on replica ``i``."""
    return jax.make_array_from_callback(
        stacked.shape, mesh.stacked, lambda index: stacked[index or ()]
    )


def host_array(leaf: Any) -> np.ndarray[Any, Any]:
    """An array on the host, of a dtype that devices hold.

    Raises:
        ArgumentTypeError: It holds strings, objects or PRNG keys.
        ContextError: It is traced.
    """
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
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _row_count(batch: Any, arrays: list[np.ndarray[Any, Any]], step: int) -> int:
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
