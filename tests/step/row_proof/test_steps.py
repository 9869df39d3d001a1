"""Steps on a padded remainder: what is refused, by which message, and what runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

VALUES = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 9.0], np.float32)  # Replicas get 2, 2, 2 and 0 rows.


@pytest.fixture(scope="module")
def strategy():
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(4)])


@pytest.fixture
def step(strategy):
    """`step(fn)`: what a replica function of the rows gives for the padded batch."""
    (batch,) = strategy.distribute_dataset([VALUES])

    def run(fn):
        @rx.function
        def one_step(rows):
            return strategy.run(lambda rows: fn(rx.get_replica_context(), rows), args=(rows,))

        return one_step(batch)

    return run


def with_loss(fn):
    """The same beside a loss that uses the mask, so that the mask is not merely forgotten."""
    return lambda ctx, rows: {"loss": ctx.global_mean(rows), "it": fn(ctx, rows)}


REFUSED = {
    "metric": lambda ctx, rows: ctx.all_reduce("mean", jnp.mean(rows > 2)),
    "metric of each replica": lambda ctx, rows: jnp.mean(rows > 2),
    "mean of gathered rows": lambda ctx, rows: jnp.mean(ctx.all_gather(rows, axis=0)),
    "gathered rows": lambda ctx, rows: ctx.all_gather(rows, axis=0),
    "sum of rows over replicas": lambda ctx, rows: ctx.all_reduce("sum", rows),
    "local batch normalisation": lambda ctx, rows: ctx.global_mean(
        (rows - rows.mean()) / (1 + rows.std())
    ),
    "rows beside their mean": lambda ctx, rows: rows - rows.mean(),
    "merge_call": lambda ctx, rows: ctx.merge_call(
        lambda strategy, rows: strategy.reduce("mean", rows, axis=0), args=(rows,)
    ),
    "packed with others": lambda ctx, rows: ctx.all_reduce("sum", [jnp.float32(1), rows.sum()])[1],
    "one of several": lambda ctx, rows: jnp.stack([jnp.float32(1), rows.sum()]),
    "right count, wrong sum": lambda ctx, rows: (
        ctx.all_reduce("sum", rows.sum()) / ctx.global_sum(jnp.ones_like(rows))
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_padding_that_counts_is_refused_although_the_mask_was_used(step, name):
    with pytest.raises(rx.errors.UnusedMaskError, match=r"result\['it'\]") as caught:
        step(with_loss(REFUSED[name]))
    assert "result['loss']" not in str(caught.value)


ACCEPTED = {
    "metric": (lambda ctx, rows: ctx.global_mean(rows > 2), 4 / 6),
    "mean by where": (
        lambda ctx, rows: (
            ctx.all_reduce("sum", jnp.sum(rows, where=ctx.row_mask))
            / ctx.all_reduce("sum", ctx.row_mask.sum())
        ),
        4.0,
    ),
    "batch normalisation of the global batch": (
        lambda ctx, rows: ctx.global_mean((rows - ctx.global_mean(rows)) ** 2),
        np.var(VALUES),
    ),
    # Padding repeats a row of the batch.
    "maximum": (lambda ctx, rows: ctx.all_reduce(rx.ReduceOp.MAX, rows.max()), 9.0),
    "packed with padding that is not used": (
        lambda ctx, rows: ctx.all_reduce("sum", [jnp.float32(1), rows.sum()])[0],
        4.0,
    ),
    "gathered and masked": (
        lambda ctx, rows: jnp.sum(
            ctx.all_gather(rows, axis=0), where=ctx.all_gather(ctx.row_mask, axis=0)
        ),
        24.0,
    ),
    "masked sum of what was put in": (
        lambda ctx, rows: jnp.exp(
            ctx.all_reduce(rx.ReduceOp.MAX, jnp.where(ctx.row_mask, jnp.log(rows), -jnp.inf).max())
        ),
        9.0,
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_counts_real_rows_alone_is_right(step, name):
    fn, expected = ACCEPTED[name]
    assert float(step(with_loss(fn))["it"]) == pytest.approx(float(expected), rel=1e-6)


def test_the_message_names_the_line_and_what_to_do(step):
    with pytest.raises(rx.errors.UnusedMaskError) as caught:
        step(with_loss(REFUSED["metric"]))
    message = str(caught.value)
    assert message.startswith("argument `rows` is a padded remainder, but its padding would count.")
    assert "sum or mean over the rows" in message
    assert "test_steps.py:" in message
    for advice in (
        "ctx.global_mean",
        "ctx.global_sum",
        "where=ctx.example_mask",
        "remainder='drop'",
    ):
        assert advice in message


def test_a_variable_is_named_and_keeps_its_value(strategy):
    (batch,) = strategy.distribute_dataset([VALUES])
    with strategy.scope():
        mean = rx.Variable(0.5, name="running_mean")
        loss = rx.Variable(0.5, name="loss")

    def replica_step(rows):
        ctx = rx.get_replica_context()
        loss.assign(ctx.global_mean(rows))
        mean.assign(0.9 * mean.value + 0.1 * ctx.all_reduce("mean", rows.mean()))

    step = rx.function(lambda rows: strategy.run(replica_step, args=(rows,)))
    with pytest.raises(rx.errors.UnusedMaskError, match="variable `running_mean`") as caught:
        step(batch)
    assert "`loss`" not in str(caught.value)
    assert float(mean) == float(loss) == 0.5


def test_the_gradient_of_a_mean_that_is_not_masked_is_refused(step):
    def fn(ctx, rows):
        grad = jax.grad(lambda w: jnp.mean(w * rows))(1.0)
        return ctx.all_reduce("mean", grad)

    with pytest.raises(rx.errors.UnusedMaskError, match=r"test_steps\.py"):
        step(with_loss(fn))


def test_results_of_rows_lose_their_padding(strategy, step):
    results = step(lambda ctx, rows: {"twice": rows * 2, "next": rows + 1})
    assert strategy.gather(results["twice"], axis=0).tolist() == (VALUES * 2).tolist()


def test_results_without_rows_need_no_mask(step):
    results = step(lambda ctx, rows: (ctx.all_reduce("sum", 1), ctx.replica_id_in_sync_group))
    assert int(results[0]) == 4


def test_what_is_not_known_needs_a_mask_to_have_been_used(step):
    def fn(ctx, rows):
        return ctx.all_reduce("sum", jnp.sort(rows)[0])

    with pytest.raises(rx.errors.UnusedMaskError, match="its mask was never used"):
        step(fn)
    assert np.isfinite(step(with_loss(fn))["it"])


def test_the_same_step_runs_on_full_batches(strategy):
    full, padded = strategy.distribute_dataset([np.ones(8, np.float32), VALUES])

    @rx.function
    def step(rows):
        return strategy.run(jnp.mean, args=(rows,))

    assert strategy.reduce("mean", step(full), axis=None) == 1.0
    with pytest.raises(rx.errors.UnusedMaskError):
        step(padded)
