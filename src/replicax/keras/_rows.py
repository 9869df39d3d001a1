"""Batches as arrays of the whole global batch, row by row over the replicas.

Rows that the replicas cannot share evenly are padded outside of the compiled step and cut off
inside, where their number is part of the program. XLA then masks what has to be masked, so a step
computes what one device computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.input._split import host_array
from replicax.keras._distribution import current_distribution
from replicax.values import ReplicaMesh


@jax.tree_util.register_pytree_node_class
class PaddedRows:
    """Real rows inside an array that the replicas share evenly.

    Keras takes it for one array, JAX for a tree with one leaf: inside a compiled step it is the
    array of the real rows.

    Args:
        array: `[num_replicas * B, ...]`, or the part of this process.
        counts: Real rows of each replica, which come first in its part.
    """

    def __init__(self, array: Any, counts: tuple[int, ...]) -> None:
        self.array, self.counts = array, counts

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the real rows."""
        return (sum(self.counts), *self.array.shape[1:])

    @property
    def dtype(self) -> Any:
        """The dtype."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def real(self) -> Any:
        """The real rows, in order."""
        share = self.array.shape[0] // len(self.counts)
        total = sum(self.counts)
        full = total // share if share else 0
        if all(count == share for count in self.counts[:full]) and not any(self.counts[full + 1 :]):
            return self.array[:total]
        parts = [self.array[i * share : i * share + n] for i, n in enumerate(self.counts) if n]
        return jnp.concatenate(parts)

    def __jax_array__(self) -> Any:
        return self.real()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001 - NumPy's
        return np.asarray(self.real(), dtype=dtype, copy=copy)

    def tree_flatten(self) -> tuple[tuple[Any], tuple[int, ...]]:
        """For JAX."""
        return (self.array,), self.counts

    @classmethod
    def tree_unflatten(cls, counts: tuple[int, ...], children: Sequence[Any]) -> Any:
        """For JAX: the real rows where a step is traced."""
        padded = cls(children[0], counts)
        return padded.real() if isinstance(children[0], jax.core.Tracer) else padded


@jax.tree_util.register_pytree_node_class
class Ready:
    """A batch that lies on the replicas.

    While Keras has a distribution, it places each leaf that it takes from an adapter. This is one
    leaf to Keras and a tree without leaves to JAX: nothing is left to do, and the batch comes out.

    Args:
        batch: What the step is to get.
    """

    shape = ()
    """What Keras asks leaves for; it stands for no rows."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        """For JAX."""
        return (), self.batch

    @classmethod
    def tree_unflatten(cls, batch: Any, children: Sequence[Any]) -> Any:
        """For JAX: the batch itself."""
        del children
        return batch


def for_keras(batch: Any) -> Any:
    """A placed batch as Keras is to take it from an adapter."""
    return batch if current_distribution() is None else Ready(batch)


def placed_batch(batch: Any, mesh: ReplicaMesh) -> Any:
    """A batch of Keras, whose leaves are arrays of all rows on the host, on the replicas.

    Over several processes each has all rows and places its part.
    """
    import keras  # noqa: PLC0415 - `keras.tree` knows what a leaf is to Keras

    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else _placed(leaf, mesh), batch
    )


def _placed(leaf: Any, mesh: ReplicaMesh) -> Any:
    if not hasattr(leaf, "__array__") or hasattr(leaf, "todense") or hasattr(leaf, "to_dense"):
        raise errors.UnimplementedError(
            errors.describe(
                f"A batch holds a {type(leaf).__name__}, which is no dense array.",
                why="It cannot be split over the replicas row by row.",
                fix="Convert it to a dense array before: `x.toarray()`.",
            )
        )
    host = host_array(np.asarray(leaf))
    if not host.ndim:
        raise errors.InvalidArgumentError(
            errors.describe(
                "A batch holds a scalar, which has no rows.",
                fix="Give every input, target and weight one entry a row on axis 0.",
            )
        )
    rows, replicas = host.shape[0], mesh.num_replicas
    share = -(-rows // replicas)
    first, last = mesh.local_replicas[0] * share, (mesh.local_replicas[-1] + 1) * share
    if share * replicas == rows:
        return placed_rows(host[first:last], mesh)
    counts = tuple(min(share, max(0, rows - i * share)) for i in range(replicas))
    own = np.empty((last - first, *host.shape[1:]), host.dtype)
    real = host[first:last]
    own[: len(real)] = real
    own[len(real) :] = host[:1]
    return PaddedRows(placed_rows(own, mesh), counts)


def placed_rows(own: np.ndarray[Any, Any], mesh: ReplicaMesh) -> Any:
    """The rows `[num_local_replicas * B, ...]` of this process as part of a global array."""
    first = mesh.local_replicas[0] * (own.shape[0] // mesh.num_local_replicas)
    total = own.shape[0] // mesh.num_local_replicas * mesh.num_replicas

    def part(index: Any) -> Any:
        start, stop, _ = index[0].indices(total)
        return own[start - first : stop - first]

    return jax.make_array_from_callback((total, *own.shape[1:]), mesh.stacked, part)
