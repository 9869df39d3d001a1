"""`rx.compute_average_loss`: the sum over replicas is the mean over the global batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

SIZE = 4


def batches_of(strategy, rows):
    return strategy.distribute_dataset(rows, rx.InputOptions(global_batch_size=SIZE))


def summed(strategy, step, *args):
    return float(strategy.reduce("sum", step(*args), axis=None))


@pytest.fixture
def average(run, strategy):
    """The sum over replicas of `compute_average_loss`, once in each runner."""

    def one_step(losses, **options):
        return summed(strategy, run, lambda x: rx.compute_average_loss(x, **options), losses)

    return one_step


# --- the mean over the global batch --------------------------------------------------------------


@pytest.mark.parametrize("count", [8, 7, 6, 5], ids="last batch of {}".format)
def test_the_sum_over_replicas_is_the_mean_over_the_global_batch(average, strategy, count):
    rows = np.arange(1.0, count + 1)
    expected = [rows[start : start + SIZE].mean() for start in range(0, count, SIZE)]
    assert [average(batch) for batch in batches_of(strategy, rows)] == pytest.approx(expected)


@pytest.mark.parametrize("count", [8, 7, 5])
def test_a_batch_size_that_is_given_divides_the_sum_of_the_real_rows(average, strategy, count):
    rows = np.arange(1.0, count + 1)
    expected = [rows[start : start + SIZE].sum() / 10 for start in range(0, count, SIZE)]
    found = [average(batch, global_batch_size=10) for batch in batches_of(strategy, rows)]
    assert found == pytest.approx(expected)


def test_batches_of_different_lengths_in_the_eager_runner(strategy):
    losses = rx.PerReplica([np.array([1.0, 2.0, 3.0]), np.array([8.0])])
    parts = strategy.run(rx.compute_average_loss, args=(losses,))
    assert [float(part) for part in parts.values] == [1.5, 2.0]


def test_the_entries_of_a_row_are_summed(average):
    losses = rx.PerReplica([np.ones((2, 3)), np.full((2, 3), 2.0)])
    assert average(losses) == pytest.approx((2 * 3 + 2 * 6) / 4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("count", [8, 7, 5])
def test_summed_gradients_are_those_of_one_device(run, strategy, count):
    rows = np.linspace(-1.0, 2.0, count, dtype=np.float32)

    def gradient(x):
        def loss(w):
            return rx.compute_average_loss(jnp.square(w * x - 1.0))

        return rx.get_replica_context().all_reduce("sum", jax.grad(loss)(jnp.float32(0.5)))

    found = [float(run(gradient, batch)) for batch in batches_of(strategy, rows)]
    expected = [
        float(jax.grad(lambda w, x=rows[i : i + SIZE]: jnp.mean(jnp.square(w * x - 1.0)))(0.5))
        for i in range(0, count, SIZE)
    ]
    assert found == pytest.approx(expected, rel=1e-6)


def test_an_infinity_in_a_row_shows(average, strategy):
    (batch,) = batches_of(strategy, np.array([1.0, np.inf, 1.0]))
    assert average(batch) == np.inf


def test_nothing_travels_while_all_rows_of_a_compiled_batch_are_real(strategy):
    step = rx.function(lambda x: strategy.run(rx.compute_average_loss, args=(x,)))
    full, rest = batches_of(strategy, np.arange(7.0))
    assert step.requested_collectives(full) == ()
    assert [entry.kind for entry in step.requested_collectives(rest)] == ["all_reduce"]


# --- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", "float32"),
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("int32", "float32"),
        ("bool", "float32"),
    ],
)
def test_the_dtype_of_the_average(run, dtype, expected):
    losses = rx.PerReplica([jnp.ones(2, dtype), jnp.zeros(2, dtype)])
    parts = run(rx.compute_average_loss, losses)
    assert [str(part.dtype) for part in parts.values] == [expected] * 2
    assert [float(part) for part in parts.values] == [0.5, 0.0]


def test_many_half_floats_do_not_overflow_before_the_division(average):
    assert average(rx.PerReplica([jnp.full(512, 200.0, jnp.float16)] * 2)) == 200.0


# --- contexts and arguments ----------------------------------------------------------------------


def test_outside_of_every_strategy_it_is_the_mean():
    assert float(rx.compute_average_loss(jnp.array([1.0, 2.0, 6.0]))) == 3.0
    assert float(jax.jit(rx.compute_average_loss)(jnp.array([1.0, 2.0, 6.0]))) == 3.0
    assert float(rx.compute_average_loss([1.0, 2.0, 6.0], global_batch_size=9)) == 1.0


def test_in_cross_replica_context_it_is_refused(strategy):
    with strategy.scope(), pytest.raises(rx.errors.ContextError, match="cross-replica") as caught:
        rx.compute_average_loss(jnp.ones(2))
    assert "strategy.run" in str(caught.value)


def test_a_scalar_is_refused(run):
    with pytest.raises(rx.errors.InvalidArgumentError, match="`compute_average_loss` was given a"):
        run(lambda: rx.compute_average_loss(jnp.float32(1.0)))


def test_what_is_not_one_value_a_row_is_refused_where_rows_are_padded(strategy):
    step = rx.function(lambda x: strategy.run(lambda x: rx.compute_average_loss(x[:1]), args=(x,)))
    (batch,) = batches_of(strategy, np.arange(3.0))
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"1 values, .* has 2 rows"):
        step(batch)


@pytest.mark.parametrize("size", [0, -4, 2.0, True, "4", np.array([4]), np.float32(4)], ids=repr)
def test_a_batch_size_that_is_no_positive_integer_is_refused(size):
    with pytest.raises(rx.errors.InvalidArgumentError, match="not a positive integer"):
        rx.compute_average_loss(jnp.ones(2), global_batch_size=size)


@pytest.mark.parametrize("size", [np.int32(4), np.array(4), jnp.int32(4)], ids=repr)
def test_a_batch_size_may_be_an_integer_of_any_kind(size):
    assert float(rx.compute_average_loss(jnp.ones(2), global_batch_size=size)) == 0.5


def test_a_batch_size_may_be_traced(average, strategy):
    def replica_fn(x):
        rows = rx.get_replica_context().all_reduce("sum", jnp.int32(2))
        return rx.compute_average_loss(x, global_batch_size=rows)

    step = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))
    assert summed(strategy, step, rx.PerReplica([np.ones(2), np.full(2, 3.0)])) == 2.0
