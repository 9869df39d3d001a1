"""Counts of rows by target and prediction."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.metrics._jitted import jitted
from replicax.metrics._metric import Metric
from replicax.metrics._totals import add_to, ratio


class CheckedCounts(Metric):
    """Counts that only rows of a certain kind can enter; how many others there were is known.

    A compiled step cannot raise an error because of the values in it. So rows that fit nowhere are
    counted, and `result` raises the error.
    """

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        super().__init__(name)
        self.total = self._new_total("total", shape)
        self.refused = self._new_total("refused")

    def _add(self, counts: jax.Array, refused: jax.Array) -> None:
        add_to(self.total, counts)
        add_to(self.refused, refused)

    def _checked(self, what: str) -> jax.Array:
        """The counts; not a number while a step is traced and some entry was refused.

        Raises:
            InvalidArgumentError: Some entry was refused.
        """
        counts, refused = self._read(self.total, self.refused)
        if isinstance(refused, jax.core.Tracer):
            return jnp.where(refused > 0, jnp.nan, counts)
        if refused > 0:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`{self.name}` was given {int(refused)} entries with {what}.",
                    why="They have no place in the counts, so the result would leave them out.",
                    fix="Correct them, or give them `sample_weight` 0; then call `reset_state`.",
                )
            )
        return counts


class ConfusionMatrix(CheckedCounts):
    """How many rows of each class were predicted as which class.

    `y_true` and `y_pred` are class numbers, ``int[B, ...]``. An entry counts once, or as much as
    its weight. Labels outside of the classes make `result` raise an error, or give NaN where it is
    traced.

    Args:
        num_classes: How many classes there are.
        name: A name.

    Raises:
        InvalidArgumentError: `num_classes` is no positive integer.

    Attributes:
        num_classes: How many classes there are.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> metric = rx.metrics.ConfusionMatrix(2)
        >>> metric.update_state(jnp.array([0, 0, 1, 1, 1]), jnp.array([0, 1, 1, 1, 0]))
        >>> metric.result()
        Array([[1., 1.],
               [1., 2.]], dtype=float32)
        >>> metric.precision(), metric.recall()
        (Array([0.5      , 0.6666667], dtype=float32), Array([0.5      , 0.6666667], dtype=float32))
    """

    def __init__(self, num_classes: int, name: str = "confusion_matrix") -> None:
        self.num_classes = _checked_number("num_classes", num_classes, 1)
        super().__init__(name, (num_classes, num_classes))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count this replica's rows.

        Context: replica; see `Metric.update_state`. Collective: no.

        Args:
            y_true: int[B, ...], the true classes.
            y_pred: int[B, ...], the predicted classes, such as ``jnp.argmax(scores, axis=-1)``.
            sample_weight: As in `Mean.update_state`.

        Raises:
            InvalidArgumentError: A scalar, or shapes that do not fit.
            ArgumentTypeError: No integers.
            ContextError: Across replicas.
        """
        rows = self._rows()
        pair = rows.pair(y_true, y_pred)
        for what, labels in zip(("y_true", "y_pred"), pair, strict=True):
            if jnp.issubdtype(labels.dtype, jnp.floating):
                raise errors.ArgumentTypeError(
                    errors.describe(
                        f"`{self.name}.update_state` was given `{what}` of dtype {labels.dtype}.",
                        why="It counts class numbers.",
                        fix="Pass integers: of scores `jnp.argmax(scores, axis=-1)`.",
                    )
                )
        weights = rows.weights(sample_weight, pair[0].shape)
        self._add(*_by_class(*pair, weights, self.num_classes))

    def result(self) -> jax.Array:
        """Return the counts: f32[num_classes, num_classes], true classes by predicted ones.

        Context: any; see `Metric.result`.

        Raises:
            InvalidArgumentError: A label was none of the classes.
        """
        return self._checked(f"a label outside of 0 to {self.num_classes - 1}")

    def precision(self) -> jax.Array:
        """Return f32[num_classes]: of the rows predicted as a class, the share that is; or 0.0."""
        counts = self.result()
        return ratio(jnp.diagonal(counts), counts.sum(axis=0))

    def recall(self) -> jax.Array:
        """Return f32[num_classes]: of the rows of a class, the share predicted as it; or 0.0."""
        counts = self.result()
        return ratio(jnp.diagonal(counts), counts.sum(axis=1))


class AUC(CheckedCounts):
    """The area under the ROC curve, by thresholds between which the curve is a straight line.

    `y_true` is 0 or 1, `y_pred` a probability, both ``[B, ...]``. Others make `result` raise an
    error, or give NaN where it is traced. 0.0 without rows of both labels.

    Args:
        num_thresholds: How many thresholds there are, evenly spaced from 0 to 1; at least 2. More
            are more exact.
        name: A name.

    Raises:
        InvalidArgumentError: `num_thresholds` is no integer from 2.

    Attributes:
        num_thresholds: How many thresholds there are.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> metric = rx.metrics.AUC()
        >>> metric.update_state(jnp.array([0, 0, 1, 1]), jnp.array([0.1, 0.6, 0.4, 0.9]))
        >>> float(metric.result())
        0.75
    """

    def __init__(self, num_thresholds: int = 200, name: str = "auc") -> None:
        self.num_thresholds = _checked_number("num_thresholds", num_thresholds, 2)
        super().__init__(name, (2, num_thresholds))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count this replica's rows above each threshold.

        Context: replica; see `Metric.update_state`. Collective: no.

        Args:
            y_true: [B, ...], 0 or 1, or booleans.
            y_pred: f32[B, ...], the probability of 1.
            sample_weight: As in `Mean.update_state`.

        Raises:
            InvalidArgumentError: A scalar, or shapes that do not fit.
            ArgumentTypeError: No real numbers.
            ContextError: Across replicas.
        """
        rows = self._rows()
        labels, scores = rows.pair(y_true, y_pred)
        weights = rows.weights(sample_weight, labels.shape)
        self._add(*_by_threshold(labels, scores, weights, self.num_thresholds))

    def result(self) -> jax.Array:
        """Return the area: f32[]; see `Metric.result`.

        Raises:
            InvalidArgumentError: A score was no probability, or a label neither 0 nor 1.
        """
        counts = self._checked(
            "a score that is no number from 0 to 1, or a label that is neither 0 nor 1"
        )
        true_rate, false_rate = ratio(counts, counts[:, :1])  # All scores exceed the first.
        return jnp.sum((false_rate[:-1] - false_rate[1:]) * (true_rate[:-1] + true_rate[1:]) / 2)


@jitted(3)
def _by_class(
    labels: jax.Array, predicted: jax.Array, weights: jax.Array, num_classes: int
) -> tuple[jax.Array, jax.Array]:
    """Counts `[num_classes, num_classes]`, and how many entries fit nowhere."""
    classes = jnp.arange(num_classes)
    is_true, is_predicted = labels[..., None] == classes, predicted[..., None] == classes
    fits = is_true.any(-1) & is_predicted.any(-1)
    counts = _products(jnp.where(is_true, weights[..., None], 0.0), is_predicted)
    return counts, _number_of(~fits, weights)


@jitted(3)
def _by_threshold(
    labels: jax.Array, scores: jax.Array, weights: jax.Array, num_thresholds: int
) -> tuple[jax.Array, jax.Array]:
    """Counts `[2, num_thresholds]` of rows above each, and how many entries fit nowhere."""
    inner = np.arange(1, num_thresholds - 1) / (num_thresholds - 1)
    # Every probability exceeds the first, and none the last.
    thresholds = np.array([-1e-7, *inner, 1 + 1e-7], np.float32)
    kinds = labels[..., None].astype(jnp.float32) == np.array([1.0, 0.0], np.float32)
    scores = scores.astype(jnp.float32)
    fits = (scores >= 0) & (scores <= 1) & kinds.any(-1)
    counts = _products(jnp.where(kinds, weights[..., None], 0.0), scores[..., None] > thresholds)
    return counts, _number_of(~fits, weights)


def _number_of(is_bad: jax.Array, weights: jax.Array) -> jax.Array:
    """How many entries are bad, of those that have a weight."""
    return jnp.sum(is_bad & (weights != 0), dtype=jnp.float32)


def _products(weights: jax.Array, marks: jax.Array) -> jax.Array:
    """f32[K, N] from `[B, ..., K]` and `[B, ..., N]`: sums of their products over all entries."""
    axes = tuple(range(weights.ndim - 1))
    return jnp.tensordot(
        weights,
        marks.astype(jnp.float32),
        axes=(axes, axes),
        precision=jax.lax.Precision.HIGHEST,  # else some devices round the weights
    )


def _checked_number(what: str, number: Any, least: int) -> int:
    if isinstance(number, int) and not isinstance(number, bool) and number >= least:
        return number
    raise errors.InvalidArgumentError(
        errors.describe(
            f"`{what}` = {number!r} is no integer from {least}.",
            fix=f"Pass an integer, {least} or more.",
        )
    )
