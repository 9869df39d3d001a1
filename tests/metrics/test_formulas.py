"""What each metric computes, on one device, against NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import replicax as rx

metrics = rx.metrics

FEW = settings(max_examples=10)
ROWS = 6
VALUES = hnp.arrays(np.float32, ROWS, elements=st.floats(-100, 100, width=32))
WEIGHTS = hnp.arrays(np.float32, ROWS, elements=st.floats(0, 10, width=16))
PROBABILITIES = hnp.arrays(np.float32, ROWS, elements=st.integers(0, 20).map(lambda i: i / 20))
LABELS = hnp.arrays(np.int32, ROWS, elements=st.integers(0, 2))
BITS = hnp.arrays(np.int32, ROWS, elements=st.integers(0, 1))


def near(expected):
    return pytest.approx(expected, rel=1e-6, abs=1e-5)


def after(metric, *calls):
    """The result after calls of `update_state`, each a tuple of arguments."""
    for call in calls:
        metric.update_state(*call)
    return np.asarray(metric.result()).tolist()


def mean(values, weights):
    """The weighted mean in float64, or 0."""
    weights = np.float64(weights)
    return (values * weights).sum() / weights.sum() if weights.sum() else 0.0


@FEW
@given(VALUES, WEIGHTS, VALUES)
def test_sums_and_means(first, weights, second):
    ones = np.ones(ROWS)
    joined = np.concatenate([first, second]).astype(np.float64)
    steps = (first, weights), (second,)

    assert after(metrics.Sum(), *steps) == near(joined @ np.concatenate([weights, ones]))
    assert after(metrics.Mean(), *steps) == near(mean(joined, np.concatenate([weights, ones])))


@FEW
@given(VALUES, VALUES, WEIGHTS)
def test_errors_of_numbers(y_true, y_pred, weights):
    call = y_true, y_pred, weights
    difference = np.float64(y_pred) - y_true
    squared = mean(difference**2, weights)

    assert after(metrics.MeanSquaredError(), call) == near(squared)
    assert after(metrics.RootMeanSquaredError(), call) == near(np.sqrt(squared))
    assert after(metrics.MeanAbsoluteError(), call) == near(mean(abs(difference), weights))


@FEW
@given(LABELS, LABELS, WEIGHTS)
def test_labels(y_true, y_pred, weights):
    matrix = metrics.ConfusionMatrix(3)
    expected = np.zeros((3, 3))
    np.add.at(expected, (y_true, y_pred), weights)

    assert after(metrics.Accuracy(), (y_true, y_pred, weights)) == near(
        mean(y_true == y_pred, weights)
    )
    np.testing.assert_allclose(after(matrix, (y_true, y_pred, weights)), expected, rtol=1e-6)
    for found, sums in ((matrix.precision(), expected.sum(0)), (matrix.recall(), expected.sum(1))):
        shares = np.diag(expected) / np.where(sums, sums, 1)
        np.testing.assert_allclose(found, shares, rtol=1e-6)


@FEW
@given(BITS, PROBABILITIES, WEIGHTS)
def test_the_area_is_how_often_a_row_with_1_scores_higher_than_one_with_0(y_true, scores, weights):
    ahead = (scores[:, None] > scores) + 0.5 * (scores[:, None] == scores)
    pairs = np.float64(weights * y_true)[:, None] * (weights * (1 - y_true))
    expected = (ahead * pairs).sum() / pairs.sum() if pairs.sum() else 0.0

    assert after(metrics.AUC(), (y_true, scores, weights)) == near(expected)


@FEW
@given(BITS, PROBABILITIES)
def test_binary_accuracy(y_true, scores):
    expected = np.mean(y_true == (scores > np.float32(0.3)))
    assert after(metrics.BinaryAccuracy(threshold=0.3), (y_true, scores)) == near(expected)


@FEW
@given(
    hnp.arrays(np.int32, ROWS, elements=st.integers(-1, 4)),
    hnp.arrays(np.float32, (ROWS, 4), elements=st.sampled_from([0.0, 0.25, 0.5, np.nan, -np.inf])),
)
def test_sparse_categorical_accuracy(labels, scores):
    # A stable order: of equal scores the first class is first. Not a number is like no other.
    order = np.argsort(-scores, axis=1, kind="stable")
    has_nan = np.isnan(scores).any(1)
    labels = np.where(has_nan, 9, labels)
    for top_k in (1, 2, 4):
        right = [label in best for label, best in zip(labels, order[:, :top_k], strict=True)]
        metric = metrics.SparseCategoricalAccuracy(top_k=top_k)
        assert after(metric, (labels, scores)) == near(np.mean(right))


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_a_score_that_is_no_number_is_never_right(top_k):
    scores = np.float32([[np.nan, 0.5, 0.1], [np.nan, np.nan, np.nan]])
    metric = metrics.SparseCategoricalAccuracy(top_k=top_k)
    assert after(metric, (np.array([0, 1]), scores)) == 0.0


@pytest.mark.parametrize(
    "metric",
    [
        metrics.Sum,
        metrics.Mean,
        metrics.Accuracy,
        metrics.BinaryAccuracy,
        metrics.SparseCategoricalAccuracy,
        metrics.MeanSquaredError,
        metrics.MeanAbsoluteError,
        metrics.RootMeanSquaredError,
        metrics.AUC,
    ],
    ids=lambda cls: cls.__name__,
)
def test_without_rows_it_is_0(metric):
    assert float(metric().result()) == 0.0


def test_a_batch_without_rows_counts_nothing():
    metric = metrics.Mean()
    assert after(metric, (np.zeros((0, 3)),), (np.ones(2),)) == 1.0


def test_the_entries_of_a_row_are_averaged_or_with_sum_added():
    values = np.arange(12.0).reshape(2, 3, 2)
    one_per_row, one_per_pair = np.array([1.0, 3.0]), np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]])
    each = values.mean(2)

    assert after(metrics.Mean(), (values,)) == near(values.mean())
    assert after(metrics.Sum(), (values,)) == near(values.sum())
    assert after(metrics.Mean(), (values, one_per_row)) == near(mean(values.mean((1, 2)), [1, 3]))
    assert after(metrics.Mean(), (values, one_per_pair)) == near(mean(each, one_per_pair))
    assert after(metrics.Mean(), (values, one_per_pair[..., None])) == near(
        mean(each, one_per_pair)
    )


def test_one_weight_may_be_given_for_all_rows():
    assert after(metrics.Mean(), ([1.0, 2.0], 2), ([6.0],)) == near(12 / 5)


def test_a_row_without_weight_does_not_count_whatever_it_holds():
    assert after(metrics.Mean(), ([np.nan, np.inf, 3.0], [0.0, 0.0, 2.0])) == 3.0


def test_infinite_and_undefined_values_are_not_hidden():
    assert after(metrics.Sum(), ([1.0, np.inf],), ([2.0],)) == np.inf
    assert np.isnan(after(metrics.Mean(), ([1.0, np.nan],), ([2.0],)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32, jnp.uint8, jnp.bool_])
def test_narrow_numbers_are_added_up_in_float32(dtype):
    assert after(metrics.Sum(), (jnp.ones(3000, dtype),)) == 3000.0


def test_a_function_of_ones_own():
    metric = metrics.MeanOf(lambda a, b, c: a * b + c, name="mine")
    metric.update_state(np.ones(2), np.float32([2, 4]), np.ones(2), sample_weight=np.ones(2))

    assert float(metric.result()) == 4.0
    assert metric.name == "mine"
    assert metrics.MeanOf(np.square).name == "square"
    assert metrics.MeanOf(lambda a: a).name == "mean_of"


def test_a_column_of_labels_is_taken_as_labels():
    column, row = np.array([[0], [1], [1]]), np.array([0, 0, 1])
    for call in ((column, row), (row, column)):
        assert after(metrics.Accuracy(), call) == near(2 / 3)
    assert after(metrics.SparseCategoricalAccuracy(), (column, np.eye(2)[row])) == near(2 / 3)


@pytest.mark.parametrize("metric", [metrics.MeanSquaredError, metrics.AUC, metrics.Accuracy])
def test_nothing_else_is_broadcast(metric):
    for shape in ((1,), (3, 3), (1, 3), (3, 2)):
        with pytest.raises(rx.errors.InvalidArgumentError, match="do not belong together"):
            metric().update_state(np.zeros(3), np.zeros(shape))


def test_labels_that_are_no_classes_are_an_error_of_the_result():
    metric = metrics.ConfusionMatrix(3)
    metric.update_state(np.array([0, 3, -1, 7]), np.array([0, 0, 1, 1]), np.array([1, 1, 1, 0]))
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"2 entries .* outside of 0 to 2"):
        metric.result()
    assert np.isnan(rx.function(metric.recall)()).all()  # a traced result cannot raise

    metric.reset_state()
    metric.update_state(np.array([2]), np.array([1]))
    assert float(metric.result().sum()) == 1.0


@pytest.mark.parametrize("score", [-0.1, 1.5, np.nan])
def test_scores_that_are_no_probabilities_are_an_error_of_the_result(score):
    metric = metrics.AUC()
    metric.update_state([1, 0], [score, 0.5])
    with pytest.raises(rx.errors.InvalidArgumentError, match="1 entries with a score"):
        metric.result()


def test_the_ends_of_the_range_of_scores_count():
    assert after(metrics.AUC(), ([1, 0], [1.0, 0.0])) == 1.0
    assert after(metrics.AUC(), ([1, 0], [0.0, 1.0])) == 0.0
    assert after(metrics.AUC(num_thresholds=2), ([1, 0], [0.0, 1.0])) == 0.5


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "3"])
def test_options_are_checked(number):
    with pytest.raises(rx.errors.InvalidArgumentError, match="top_k"):
        metrics.SparseCategoricalAccuracy(top_k=number)
    with pytest.raises(rx.errors.InvalidArgumentError, match="num_classes"):
        metrics.ConfusionMatrix(number)
    with pytest.raises(rx.errors.InvalidArgumentError, match="num_thresholds"):
        metrics.AUC(num_thresholds=number)
    with pytest.raises(rx.errors.ArgumentTypeError, match="no function"):
        metrics.MeanOf(number)


@pytest.mark.parametrize(
    ("values", "weights", "error", "message"),
    [
        (1.0, None, rx.errors.InvalidArgumentError, "was given a scalar as `values`"),
        (np.ones(2), np.ones(3), rx.errors.InvalidArgumentError, r"shape \(3,\) for values"),
        (np.ones(3), np.ones((3, 2)), rx.errors.InvalidArgumentError, r"shape \(3, 2\)"),
        ("text", None, rx.errors.ArgumentTypeError, "no array"),
        (np.ones(2, complex), None, rx.errors.ArgumentTypeError, "dtype complex64"),
        (np.ones(2), "text", rx.errors.ArgumentTypeError, "`sample_weight` of `loss"),
    ],
    ids=["scalar", "long weights", "deep weights", "text", "complex", "text as weight"],
)
def test_values_that_do_not_fit(values, weights, error, message):
    metric = metrics.Mean("loss")
    with pytest.raises(error, match=message):
        metric.update_state(values, weights)
    assert float(metric.result()) == 0.0


def test_a_function_that_averages_by_itself_is_named():
    def averaged(x):
        return x.mean()

    with pytest.raises(rx.errors.InvalidArgumentError, match=r"averaged\(\.\.\.\)"):
        metrics.MeanOf(averaged).update_state(np.ones(3))


def test_scores_are_no_classes():
    with pytest.raises(rx.errors.ArgumentTypeError, match="argmax"):
        metrics.ConfusionMatrix(2).update_state(np.array([1, 0]), np.array([0.2, 0.8]))


def test_it_forgets():
    metric = metrics.Mean()
    assert after(metric, ([1.0, 2.0],)) == 1.5
    metric.reset_state()
    assert after(metric) == 0.0
    assert after(metric, ([7.0],)) == 7.0
    assert [variable.name for variable in metric.variables] == ["mean.total", "mean.count"]
    assert repr(metric) == "<Mean 'mean'>"
