"""Sums and weighted means of values that come one a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.metrics._jitted import jitted
from replicax.metrics._metric import Metric
from replicax.metrics._rows import Rows
from replicax.metrics._totals import add_to, ratio


class Sum(Metric):
    """The sum of all values, each times its row's weight; 0.0 without rows.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     tokens = rx.metrics.Sum("tokens")
        >>> lengths = rx.PerReplica([np.array([3, 4]), np.array([5])])
        >>> strategy.run(tokens.update_state, args=(lengths,))
        >>> float(tokens.result())
        12.0
    """

    def __init__(self, name: str = "sum") -> None:
        super().__init__(name)
        self.total = self._new_total("total")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Add the values of this replica's rows.

        Context: replica; see `Metric.update_state`. Collective: no.

        Args:
            values: [B, ...], one value or array for each row.
            sample_weight: f32[B] a weight a row, or f32[B, ...] one for each entry of the values'
                first axes, or one number for all; 1.0 by default.

        Raises:
            InvalidArgumentError: A scalar, or shapes that do not fit.
            ArgumentTypeError: No real numbers.
            ContextError: Across replicas.
        """
        rows = self._rows()
        array = rows.checked(values)
        weights = rows.weights(sample_weight, array.shape)
        add_to(self.total, _sum(array, weights))

    def result(self) -> jax.Array:
        """Return the sum: f32[]; see `Metric.result`."""
        return self._read(self.total)[0]


class WeightedMean(Metric):
    """The weighted mean over rows of what a kind of metric finds for each row."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.total = self._new_total("total")
        self.count = self._new_total("count")

    def _add(self, rows: Rows, values: jax.Array, sample_weight: Any) -> None:
        weights = rows.weights(sample_weight, values.shape)
        total, count = _sums_of_means(values, weights)
        add_to(self.total, total)
        add_to(self.count, count)

    def result(self) -> jax.Array:
        """Return the mean: f32[], 0.0 without rows; see `Metric.result`."""
        return ratio(*self._read(self.total, self.count))


class Mean(WeightedMean):
    """The weighted mean over all rows; 0.0 without rows.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     loss = rx.metrics.Mean("loss")
        >>> @rx.function
        ... def evaluate(batch):
        ...     strategy.run(loss.update_state, args=(batch,))
        >>> options = rx.InputOptions(global_batch_size=4)
        >>> for batch in strategy.distribute_dataset(np.arange(7.0), options):
        ...     evaluate(batch)
        >>> float(loss.result())
        3.0
    """

    def __init__(self, name: str = "mean") -> None:
        super().__init__(name)

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Add the values of this replica's rows.

        Context: replica; see `Metric.update_state`. Collective: no.

        Args:
            values: [B, ...], one value a row. Of an array the mean of its entries counts.
            sample_weight: f32[B] a weight a row, or f32[B, ...] one for each entry of the values'
                first axes, or one number for all; 1.0 by default.

        Raises:
            InvalidArgumentError: A scalar, or shapes that do not fit.
            ArgumentTypeError: No real numbers.
            ContextError: Across replicas.
        """
        rows = self._rows()
        self._add(rows, rows.checked(values), sample_weight)


class MeanOf(WeightedMean):
    """The weighted mean over all rows of a function of yours; 0.0 without rows.

    Args:
        fn: Gets what `update_state` is given, and returns one value a row, ``[B, ...]``.
        name: A name; by default that of the function.

    Raises:
        ArgumentTypeError: `fn` is no function.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> def log_error(y_true, y_pred):
        ...     return jnp.abs(jnp.log1p(y_true) - jnp.log1p(y_pred))
        >>> metric = rx.metrics.MeanOf(log_error)
        >>> metric.update_state(jnp.array([1.0, 3.0]), jnp.array([1.0, 1.0]))
        >>> print(f"{metric.result():.3f}")
        0.347
    """

    def __init__(self, fn: Callable[..., Any], name: str | None = None) -> None:
        if not callable(fn):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"`MeanOf` was given {fn!r}, which is no function.",
                    fix="Pass a function that returns one value for each row of its arguments. "
                    "For values that you have, use `rx.metrics.Mean`.",
                )
            )
        found = getattr(fn, "__name__", "mean_of")
        super().__init__(name if name is not None else found.replace("<lambda>", "mean_of"))
        self.fn = fn

    def update_state(self, *inputs: Any, sample_weight: Any = None) -> None:
        """Add what the function finds for this replica's rows.

        Context: replica; see `Metric.update_state`. Collective: no.

        Args:
            *inputs: What the function takes.
            sample_weight: As in `Mean.update_state`.

        Raises:
            InvalidArgumentError: The function returned a scalar, or shapes do not fit.
            ArgumentTypeError: It returned no real numbers.
            ContextError: Across replicas.
        """
        rows = self._rows()
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        self._add(rows, rows.checked(self.fn(*inputs), f"{name}(...)"), sample_weight)


@jitted()
def _sum(values: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.sum(_weighted(values, weights))


@jitted()
def _sums_of_means(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums over rows of weighted values and of weights; of each row the mean of its entries."""
    return jnp.sum(_mean_of_rows(_weighted(values, weights))), jnp.sum(_mean_of_rows(weights))


def _weighted(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Values times weights; padding, whose weight is 0, is a real row and so finite where it is."""
    return jnp.where(weights == 0, 0.0, values.astype(jnp.float32)) * weights


def _mean_of_rows(array: jax.Array) -> jax.Array:
    """f32[B] from f32[B, ...]."""
    entries = math.prod(array.shape[1:])
    return jnp.sum(array, axis=tuple(range(1, array.ndim))) / max(entries, 1)
