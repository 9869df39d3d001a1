"""Any sizes of dataset, batch and model, any number of replicas: the numbers of one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import replicax as rx

from .models import (
    Functional,
    InPlace,
    cut,
    initial_params,
    largest_difference,
    mirrored,
    per_row_loss,
    predict,
    rows,
    train_on_one_device,
)

EAGER_STEPS = 3  # an eager step costs a hundred compiled ones

SIZES = given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 17),
    n=st.integers(1, 8),
    features=st.integers(1, 4),
)
EXAMPLES = {"max_examples": 3}  # each draws shapes of its own, which are compiled


def check_training(trainer, batches, features):
    weights, losses = trainer.train(batches)
    expected_weights, expected_losses = train_on_one_device("sgd", batches, features)
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    assert largest_difference(weights, expected_weights) <= 1e-6


@pytest.mark.slow
@SIZES
@settings(**EXAMPLES)
@example(count=1, batch_size=17, n=8, features=1)
@example(count=40, batch_size=13, n=7, features=2)
def test_compiled_training(count, batch_size, n, features):
    trainer = Functional("sgd", mirrored(n), compiled=True, features=features)
    check_training(trainer, cut(rows(count, features), batch_size), features)


@pytest.mark.slow
@SIZES
@settings(**EXAMPLES)
@example(count=11, batch_size=9, n=8, features=3)
def test_compiled_training_in_place(count, batch_size, n, features):
    trainer = InPlace("sgd", mirrored(n), compiled=True, features=features)
    check_training(trainer, cut(rows(count, features), batch_size), features)


@pytest.mark.slow
@SIZES
@settings(max_examples=2)
@example(count=4, batch_size=3, n=5, features=2)
def test_eager_training(count, batch_size, n, features):
    trainer = InPlace("sgd", mirrored(n), compiled=False, features=features)
    batches = cut(rows(count, features), batch_size)[-EAGER_STEPS:]
    check_training(trainer, batches, features)


# --- what a step returns ---------------------------------------------------------------------


@jax.jit
def row_values(params, batch):
    """Prediction, loss, and whether the sign of the first target was met, of each row."""
    x, y = batch
    prediction = predict(params, x)
    return prediction, per_row_loss(params, x, y), prediction[:, 0] * (y[:, 0] - 2) > 0


def check_outputs(wrap, batches, n, features):
    strategy, params = mirrored(n), initial_params(features)

    def replica_step(batch):
        ctx = rx.get_replica_context()
        prediction, loss, right = row_values(params, batch)
        return {
            "prediction": prediction,
            "row_loss": loss,
            "right": right,
            "correct": ctx.global_sum(right),
            "accuracy": ctx.global_mean(right),
            "mean_prediction": ctx.global_mean(prediction),
            "loss_sum": ctx.global_sum(loss),
        }

    def step(batch):
        out = strategy.run(replica_step, args=(batch,))
        reduced = {
            name: strategy.reduce(op, out["row_loss"], axis=0)
            for name, op in (("mean", "mean"), ("sum", "sum"), ("max", rx.ReduceOp.MAX))
        }
        return out, reduced, strategy.reduce(rx.ReduceOp.MIN, out["prediction"], axis=0)

    step = wrap(step)
    for batch, one in zip(strategy.distribute_dataset(batches), batches, strict=True):
        out, reduced, smallest = step(batch)
        prediction, loss, right = map(np.asarray, row_values(params, one))
        gathered = strategy.gather((out["prediction"], out["right"]), axis=0)
        np.testing.assert_allclose(gathered[0], prediction, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(gathered[1], right)
        assert int(out["correct"]) == right.sum()
        assert jnp.issubdtype(out["correct"].dtype, jnp.integer)
        assert float(out["accuracy"]) == pytest.approx(right.mean(), rel=1e-6)
        np.testing.assert_allclose(
            out["mean_prediction"], prediction.mean(axis=0), rtol=1e-5, atol=1e-6
        )
        assert float(out["loss_sum"]) == pytest.approx(loss.sum(), rel=1e-5)
        assert float(reduced["sum"]) == pytest.approx(loss.sum(), rel=1e-5)
        assert float(reduced["mean"]) == pytest.approx(loss.mean(), rel=1e-5)
        assert float(reduced["max"]) == pytest.approx(loss.max(), rel=1e-6)
        np.testing.assert_allclose(smallest, prediction.min(axis=0), rtol=1e-6, atol=1e-6)
        assert float(strategy.reduce("mean", out["row_loss"], axis=0)) == pytest.approx(
            loss.mean(), rel=1e-5
        )


@pytest.mark.slow
@SIZES
@settings(**EXAMPLES)
@example(count=9, batch_size=7, n=8, features=2)
def test_compiled_outputs(count, batch_size, n, features):
    check_outputs(rx.function, cut(rows(count, features), batch_size)[-3:], n, features)


@pytest.mark.slow
@SIZES
@settings(max_examples=2)
@example(count=7, batch_size=7, n=3, features=2)
def test_eager_outputs(count, batch_size, n, features):
    check_outputs(lambda step: step, cut(rows(count, features), batch_size)[-2:], n, features)


# --- padding that other ways than global_mean could count ----------------------------------------

WAYS_TO_COMBINE_ROWS = {
    "merge_call": lambda ctx, values: ctx.merge_call(
        lambda strategy, values: strategy.reduce("mean", values, axis=0), args=(values,)
    ),
    "all_gather": lambda ctx, values: jnp.mean(ctx.all_gather(values, axis=0)),
    "merge_call gather": lambda ctx, values: jnp.mean(
        ctx.merge_call(lambda strategy, values: strategy.gather(values, axis=0), args=(values,))
    ),
}


@pytest.mark.parametrize("way", WAYS_TO_COMBINE_ROWS)
def test_rows_of_an_uneven_batch_are_combined_rightly_or_not_at_all(runner, way):
    """Even where the same step has used the mask for something else."""
    strategy, values = mirrored(4), np.arange(1.0, 7.0, dtype=np.float32)

    def replica_step(values):
        ctx = rx.get_replica_context()
        return ctx.global_mean(values), WAYS_TO_COMBINE_ROWS[way](ctx, values)

    step = runner(lambda values: strategy.run(replica_step, args=(values,)))
    (batch,) = strategy.distribute_dataset([values])
    try:
        mean, combined = step(batch)
    except rx.errors.ReplicaxError:
        assert runner.compiled  # only there are rows padded
        return
    assert float(mean) == pytest.approx(3.5)
    assert float(combined) == pytest.approx(3.5)
