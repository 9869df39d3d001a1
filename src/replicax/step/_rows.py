"""Which rows of a replica's batch are real.

The remainder of a dataset is padded so that all replicas hold arrays of one shape. The padding
repeats real rows, so that nothing computed from it is infinite or undefined; it must be masked
out of every sum. `LocalRows` is what a replica context knows of it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors


class LocalRows:
    """The rows of one replica's batch.

    Args:
        capacity: Number of rows with padding, `B`; None if unknown.
        real: i32[], how many leading rows are real; None if all are.
        may_differ: Whether replicas may hold different numbers of rows without padding, as in
            the eager runner.
    """

    def __init__(
        self, capacity: int | None = None, real: Any = None, *, may_differ: bool = False
    ) -> None:
        self.capacity = capacity
        self.real = real
        self.may_differ = may_differ
        self.mask_was_used = False

    def mask(self) -> jax.Array | None:
        """bool[B], or None if every row is real."""
        self.mask_was_used = True
        if self.real is None or self.capacity is None:
            return None
        mask: jax.Array = jnp.arange(self.capacity) < self.real
        return mask

    def checked(self, per_row: Any, call: str) -> jax.Array:
        """Return ``per_row`` as an array with one entry a row.

        Raises:
            InvalidArgumentError: It is a scalar, or its length is not that of a padded batch.
        """
        array = jnp.asarray(per_row)
        if array.ndim == 0:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`{call}` was given a scalar; it takes one value for each row.",
                    why="A mean or sum that was already taken over a replica's rows can no longer "
                    "tell real rows from padding, nor weigh replicas with fewer rows.",
                    fix="Pass the per-row values, before `jnp.mean` or `jnp.sum`.",
                )
            )
        if self.real is not None and array.shape[0] != self.capacity:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`{call}` was given {array.shape[0]} values, but this replica's batch has "
                    f"{self.capacity} rows.",
                    why="The batch is the remainder of a dataset and holds padding, which is "
                    "masked out row by row.",
                    fix=f"Pass an array of shape ({self.capacity}, ...): keep the batch axis first "
                    "and reduce the other axes before.",
                )
            )
        return array

    def sum_of(self, per_row: jax.Array) -> jax.Array:
        """Sum over this replica's real rows, along axis 0."""
        mask = self.mask()
        if mask is None:
            return jnp.sum(per_row, axis=0)
        return jnp.sum(per_row, axis=0, where=mask.reshape(mask.shape + (1,) * (per_row.ndim - 1)))

    def count(self, rows: int) -> jax.Array:
        """i32[], the number of this replica's real rows."""
        return jnp.int32(rows) if self.real is None else jnp.asarray(self.real, jnp.int32)

    def static_total(self, rows: int, num_replicas: int) -> int | None:
        """The number of rows of the global batch if it is known without asking the replicas."""
        if self.real is not None or self.may_differ:
            return None
        return rows * num_replicas


def wide_enough(array: jax.Array) -> jax.Array:
    """The array in a dtype that sums of many rows fit in."""
    if array.dtype in (jnp.float16, jnp.bfloat16):
        return array.astype(jnp.float32)
    return array.astype(jnp.int32) if array.dtype == jnp.bool_ else array


def mean_dtype(dtype: Any) -> Any:
    """The dtype of a mean over rows: float32 for integers."""
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.float32
