"""What `update_state` is given: values and weights of the rows of one replica's batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.metrics._jitted import jitted
from replicax.values._combine import as_array


class Rows:
    """The rows that one call of `update_state` adds.

    Args:
        call: How messages call the method.
        mask: bool[B], which rows are real; None if all are.
    """

    def __init__(self, call: str, mask: jax.Array | None) -> None:
        self.call, self.mask = call, mask

    def checked(self, values: Any, what: str = "values") -> jax.Array:
        """Return values as an array with one entry a row.

        Raises:
            ArgumentTypeError: They are no real numbers.
            InvalidArgumentError: A scalar, or another number of rows than a padded batch has.
        """
        array = as_array(values, f"`{what}` of {self.call}")
        is_real = jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(
            array.dtype, jnp.integer
        )
        if not is_real and array.dtype != jnp.bool_:
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"{self.call} was given `{what}` of dtype {array.dtype}.",
                    fix="Pass real numbers or booleans, one for each row.",
                )
            )
        if array.ndim == 0:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"{self.call} was given a scalar as `{what}`; it takes one value for each row.",
                    why="A mean that was already taken over a replica's rows can no longer tell "
                    "real rows from padding, and would weigh replicas and batches instead of rows.",
                    fix="Pass the per-row values, before `jnp.mean` or `jnp.sum`.",
                )
            )
        if self.mask is not None and array.shape[0] != self.mask.shape[0]:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"{self.call} was given {array.shape[0]} `{what}`, but this replica's batch "
                    f"has {self.mask.shape[0]} rows.",
                    why="The batch is the remainder of a dataset and holds padding, which is "
                    "masked out row by row.",
                    fix=f"Pass an array of shape ({self.mask.shape[0]}, ...): keep the batch axis "
                    "first.",
                )
            )
        return array

    def weights(self, sample_weight: Any, shape: tuple[int, ...]) -> jax.Array:
        """Return the weights of values of a shape: f32 of that shape, 0 at padding.

        Raises:
            InvalidArgumentError: The weights do not fit the values.
        """
        if sample_weight is None:
            return _masked(1.0, self.mask, shape)
        array = as_array(sample_weight, f"`sample_weight` of {self.call}")
        if array.ndim:  # One weight for all rows is clear, as a scalar value is not.
            array = self.checked(array, "sample_weight")
        array = without_last_axis(array, len(shape))
        pairs = zip(array.shape[1:], shape[1:], strict=False)
        if (
            array.shape[:1] not in ((), shape[:1])
            or array.ndim > len(shape)
            or any(length not in (1, wanted) for length, wanted in pairs)
        ):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"{self.call} was given weights of shape {array.shape} for values of shape "
                    f"{shape}.",
                    fix="Pass one weight a row, of shape "
                    f"({shape[0]},), or one for each entry of the values' first axes.",
                )
            )
        return _masked(array, self.mask, shape)

    def pair(self, y_true: Any, y_pred: Any) -> tuple[jax.Array, jax.Array]:
        """Return targets and predictions of one shape; `[B, 1]` beside `[B]` is taken as `[B]`.

        Raises:
            InvalidArgumentError: Their shapes differ.
        """
        targets = self.checked(y_true, "y_true")
        predictions = self.checked(y_pred, "y_pred")
        targets = without_last_axis(targets, predictions.ndim)
        predictions = without_last_axis(predictions, targets.ndim)
        self.require_fit(targets, predictions, fits=targets.shape == predictions.shape)
        return targets, predictions

    def require_fit(self, targets: jax.Array, predictions: jax.Array, *, fits: bool) -> None:
        """Refuse targets and predictions that would be broadcast against each other.

        Raises:
            InvalidArgumentError: They do not fit.
        """
        if fits:
            return
        raise errors.InvalidArgumentError(
            errors.describe(
                f"{self.call} was given `y_true` of shape {targets.shape} and `y_pred` of shape "
                f"{predictions.shape}, which do not belong together.",
                why="Broadcasting them would compare rows with other rows.",
                fix="Give both the same rows on axis 0, and the shapes that the metric's "
                "documentation names.",
            )
        )


@jitted(2)
def _masked(weights: Any, mask: jax.Array | None, shape: tuple[int, ...]) -> jax.Array:
    """Weights of a shape from those of its first axes, 0 at padding."""
    given: jax.Array = jnp.asarray(weights, jnp.float32)
    given = given.reshape(given.shape + (1,) * (len(shape) - given.ndim))
    given = jnp.broadcast_to(given, shape)
    if mask is None:
        return given
    return jnp.where(mask.reshape(mask.shape + (1,) * (len(shape) - 1)), given, 0.0)


def without_last_axis(array: jax.Array, ndim: int) -> jax.Array:
    """Drop a last axis of length 1 if that leaves `ndim` axes."""
    is_column = array.ndim == ndim + 1 and array.ndim > 1 and array.shape[-1] == 1
    return array[..., 0] if is_column else array
