"""Means over rows of how well predictions fit their targets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.metrics._jitted import jitted
from replicax.metrics._means import WeightedMean
from replicax.metrics._rows import Rows, without_last_axis


class MeanOfPairs(WeightedMean):
    """The weighted mean of one value for each row's target and prediction."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add this replica's rows.

        Context: replica; see `Metric.update_state`. Collective: no.

        Args:
            y_true: [B, ...], the targets.
            y_pred: [B, ...], the predictions. `[B, 1]` beside `[B]` is taken as `[B]`; nothing
                else is broadcast.
            sample_weight: As in `Mean.update_state`.

        Raises:
            InvalidArgumentError: A scalar, or shapes that do not fit.
            ArgumentTypeError: No real numbers.
            ContextError: Across replicas.
        """
        rows = self._rows()
        self._add(rows, self._fit(rows, y_true, y_pred), sample_weight)

    def _fit(self, rows: Rows, y_true: Any, y_pred: Any) -> jax.Array:
        """[B, ...], what to take the mean of."""
        raise NotImplementedError


class Accuracy(MeanOfPairs):
    """How often predicted labels equal the true ones; 0.0 without rows.

    Both are ``[B, ...]``. Of a row with several labels their share counts.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> metric = rx.metrics.Accuracy()
        >>> metric.update_state(jnp.array([1, 2, 3, 4]), jnp.array([1, 2, 3, 0]))
        >>> float(metric.result())
        0.75
    """

    def __init__(self, name: str = "accuracy") -> None:
        super().__init__(name)

    def _fit(self, rows: Rows, y_true: Any, y_pred: Any) -> jax.Array:
        targets, predictions = rows.pair(y_true, y_pred)
        return jnp.equal(targets, predictions)


class BinaryAccuracy(MeanOfPairs):
    """How often a score is above the threshold where the label is 1, and not where it is 0.

    Both are ``[B, ...]``; 0.0 without rows.

    Args:
        name: A name.
        threshold: A score above it predicts 1.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> metric = rx.metrics.BinaryAccuracy(threshold=0.6)
        >>> metric.update_state(jnp.array([1, 1, 0, 0]), jnp.array([0.9, 0.5, 0.5, 0.2]))
        >>> float(metric.result())
        0.75
    """

    def __init__(self, name: str = "binary_accuracy", threshold: float = 0.5) -> None:
        super().__init__(name)
        self.threshold = threshold

    def _fit(self, rows: Rows, y_true: Any, y_pred: Any) -> jax.Array:
        targets, predictions = rows.pair(y_true, y_pred)
        return _is_on_side(targets, predictions, self.threshold)


class SparseCategoricalAccuracy(MeanOfPairs):
    """How often the label is among the classes with the `top_k` highest scores.

    `y_true` holds class numbers, ``int[B, ...]`` or ``int[B, ..., 1]``; `y_pred` scores or
    probabilities, ``f32[B, ..., num_classes]``. Of equal scores the first class is higher, as in
    `jnp.argmax`. A label that is no class, and a score that is not a number, are never right. 0.0
    without rows.

    Args:
        name: A name.
        top_k: How many classes a row may name.

    Raises:
        InvalidArgumentError: `top_k` is no positive integer.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> scores = jnp.array([[0.1, 0.9, 0.0], [0.5, 0.3, 0.2]])
        >>> for top_k in (1, 2):
        ...     metric = rx.metrics.SparseCategoricalAccuracy(top_k=top_k)
        ...     metric.update_state(jnp.array([1, 1]), scores)
        ...     print(metric.result())
        0.5
        1.0
    """

    def __init__(self, name: str = "sparse_categorical_accuracy", top_k: int = 1) -> None:
        if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`top_k` = {top_k!r} is no positive integer.",
                    fix="Pass how many classes a row may name, 1 for the usual accuracy.",
                )
            )
        super().__init__(name)
        self.top_k = top_k

    def _fit(self, rows: Rows, y_true: Any, y_pred: Any) -> jax.Array:
        labels = rows.checked(y_true, "y_true")
        scores = rows.checked(y_pred, "y_pred")
        labels = without_last_axis(labels, scores.ndim - 1)
        rows.require_fit(labels, scores, fits=labels.shape == scores.shape[:-1])
        return _is_among_best(labels, scores, self.top_k)


class MeanSquaredError(MeanOfPairs):
    """The mean of squared differences; 0.0 without rows.

    Both are ``[B, ...]``. Of a row with several numbers their mean counts.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> metric = rx.metrics.MeanSquaredError()
        >>> metric.update_state(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
        >>> float(metric.result())
        2.0
    """

    def __init__(self, name: str = "mean_squared_error") -> None:
        super().__init__(name)

    def _fit(self, rows: Rows, y_true: Any, y_pred: Any) -> jax.Array:
        return _squared_difference(*rows.pair(y_true, y_pred))


class MeanAbsoluteError(MeanOfPairs):
    """The mean of absolute differences; otherwise like `MeanSquaredError`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> metric = rx.metrics.MeanAbsoluteError()
        >>> metric.update_state(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
        >>> float(metric.result())
        1.0
    """

    def __init__(self, name: str = "mean_absolute_error") -> None:
        super().__init__(name)

    def _fit(self, rows: Rows, y_true: Any, y_pred: Any) -> jax.Array:
        return _absolute_difference(*rows.pair(y_true, y_pred))


class RootMeanSquaredError(MeanSquaredError):
    """The square root of the mean of squared differences; otherwise like `MeanSquaredError`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> metric = rx.metrics.RootMeanSquaredError()
        >>> metric.update_state(jnp.array([0.0, 0.0]), jnp.array([1.0, 7.0]))
        >>> float(metric.result())
        5.0
    """

    def __init__(self, name: str = "root_mean_squared_error") -> None:
        super().__init__(name)

    def result(self) -> jax.Array:
        """Return the square root of the mean: f32[]; see `Metric.result`."""
        return jnp.sqrt(super().result())


@jitted()
def _is_on_side(targets: jax.Array, scores: jax.Array, threshold: float) -> jax.Array:
    return jnp.equal(targets, scores > threshold)


@jitted(2)
def _is_among_best(labels: jax.Array, scores: jax.Array, top_k: int) -> jax.Array:
    """Whether fewer than `top_k` classes come before the label's."""
    label, classes = labels[..., None], jnp.arange(scores.shape[-1])
    scores = scores.astype(jnp.float32)
    score = jnp.max(scores, axis=-1, keepdims=True, where=classes == label, initial=-jnp.inf)
    is_before = ~(scores <= score) | ((scores == score) & (classes < label))
    is_class = jnp.any(classes == label, axis=-1)
    return is_class & (jnp.sum(is_before, axis=-1) < top_k)


@jitted()
def _squared_difference(targets: jax.Array, predictions: jax.Array) -> jax.Array:
    return jnp.square(predictions.astype(jnp.float32) - targets.astype(jnp.float32))


@jitted()
def _absolute_difference(targets: jax.Array, predictions: jax.Array) -> jax.Array:
    distance: jax.Array = jnp.abs(predictions.astype(jnp.float32) - targets.astype(jnp.float32))
    return distance
