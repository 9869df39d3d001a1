"""`rx.accumulate`: micro-batches, one reduction, the numbers of one device."""

from __future__ import annotations

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

START = np.array([1.0, -2.0], np.float32)


@functools.cache
def mirrored(n):
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(n)])


def table(rows, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(rows, 2)).astype(np.float32),
        rng.integers(0, 4, rows).astype(np.float32),
    )


@jax.jit
def errors_of_rows(w, x, weights):
    return (x @ w - weights) ** 2


@jax.jit
def by_hand(w, x, weights):
    """The weighted loss of one device and its gradient; without weights where they are None."""

    def loss(w):
        losses = errors_of_rows(w, x, weights)
        return jnp.sum(losses * weights) / jnp.sum(weights)

    return jax.value_and_grad(loss)(w)


@functools.cache
def training(n, steps, *, is_weighted):
    strategy = mirrored(n)

    @rx.function
    def step(w, batch):
        def replica_step(w, batch):
            def fn(w, micro):
                losses = errors_of_rows(w, *micro)
                return (losses, micro[1]) if is_weighted else losses

            return rx.accumulate(fn, batch, steps, params=w)

        return strategy.run(replica_step, args=(w, batch))

    return step


@hypothesis.settings(max_examples=12)
@hypothesis.given(
    n=st.sampled_from([1, 2, 3]),
    steps=st.integers(1, 4),
    rows=st.integers(1, 9),
    seed=st.integers(0, 9),
    is_weighted=st.booleans(),
)
@pytest.mark.slow
def test_every_split_gives_the_numbers_of_one_device(n, steps, rows, seed, is_weighted):
    x, weights = table(rows, seed)
    weights[0] = 1.0  # Something counts.
    step = training(n, steps, is_weighted=is_weighted)

    (batch,) = mirrored(n).distribute_dataset((x, weights), rx.InputOptions(global_batch_size=rows))
    loss, gradient = step(jnp.asarray(START), batch)

    if is_weighted:
        expected = by_hand(START, x, weights)
    else:
        expected = jax.value_and_grad(lambda w: errors_of_rows(w, x, weights).mean())(START)
    np.testing.assert_allclose(loss, expected[0], rtol=2e-6)
    np.testing.assert_allclose(gradient, expected[1], rtol=2e-5, atol=1e-6)


def test_there_is_one_reduction_whatever_the_number_of_micro_batches(strategy):
    step = training(2, 4, is_weighted=True)
    (batch,) = strategy.distribute_dataset([table(8)])

    assert [entry.kind for entry in step.requested_collectives(jnp.asarray(START), batch)] == [
        "all_reduce"
    ]


@pytest.mark.parametrize("rows", [5, 1])
def test_variables_in_both_runners(runner, strategy, rows):
    with strategy.scope():
        w = rx.Variable(START, name="w")
        seen = rx.Variable(0.0, name="seen", synchronization="on_read", aggregation="sum")
    x, weights = table(rows)

    def replica_step(x, weights):
        def fn(micro):
            seen.assign_add(rx.get_replica_context().local_sum(jnp.ones(micro[0].shape[0])))
            return errors_of_rows(w.value, *micro), micro[1]

        return rx.accumulate(fn, (x, weights), 3, [w])

    step = runner(lambda batch: strategy.run(replica_step, args=batch))
    (batch,) = strategy.distribute_dataset((x, weights), rx.InputOptions(global_batch_size=rows))
    loss, (gradient,) = step(batch)

    expected = by_hand(START, x, weights)
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-5)
    assert float(seen) == rows  # Each real row was seen once, padding never.


def test_the_next_micro_batch_sees_what_the_last_one_wrote(strategy):
    with strategy.scope():
        w, count = rx.Variable(1.0, name="w"), rx.Variable(0, name="count", trainable=False)

    @rx.function
    def step(x):
        def replica_step(x):
            def fn(x):
                count.assign(2 * count.value + 1)
                return w.value * x

            return rx.accumulate(fn, x, 3, [w])

        return strategy.run(replica_step, args=(x,))

    step(rx.PerReplica([np.ones(6, np.float32), np.ones(6, np.float32)]))
    assert int(count) == 7


def test_half_precision_is_added_up_in_float32(strategy):
    # In bfloat16, 256 + 1 is 256.
    x = np.concatenate([[256.0], np.ones(63)]).astype(jnp.bfloat16)

    def replica_step(w, x):
        return rx.accumulate(lambda w, x: w * x, x, 64, params=w)

    step = rx.function(lambda w, x: strategy.run(replica_step, args=(w, x)))
    _, gradient = step(jnp.ones((), jnp.bfloat16), rx.PerReplica([x, x]))

    assert gradient.dtype == jnp.bfloat16
    assert float(gradient) == pytest.approx((256 + 63) / 64, rel=4e-3)


def test_outside_of_strategies_it_is_one_device():
    x, weights = table(7)

    loss, gradient = rx.accumulate(
        lambda w, rows: errors_of_rows(w, *rows), (x, weights), 3, params=START
    )

    expected = jax.value_and_grad(lambda w: errors_of_rows(w, x, weights).mean())(START)
    np.testing.assert_allclose(loss, expected[0], rtol=1e-6)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        pytest.param(lambda w, x: jnp.mean(w * x), "scalar", id="scalar"),
        pytest.param(lambda w, x: (w * x, x, x), "3 values", id="three"),
        pytest.param(lambda w, x: (w * x, x[:, None]), "shape", id="weights"),
    ],
)
def test_losses_that_have_no_rows_are_refused(fn, message):
    with pytest.raises(rx.errors.InvalidArgumentError, match=message):
        rx.accumulate(fn, jnp.ones(4), 2, params=1.0)


def test_arguments_are_checked():
    refused = pytest.raises(rx.errors.InvalidArgumentError)
    with refused as caught:
        rx.accumulate(lambda w, x: w * x, jnp.ones(4), 0, params=1.0)
    assert "`steps` = 0" in str(caught.value)
    with pytest.raises(rx.errors.InvalidArgumentError, match="either `variables` or `params`"):
        rx.accumulate(lambda w, x: w * x, jnp.ones(4), 2)
    with pytest.raises(rx.errors.InvalidArgumentError, match="one number of rows"):
        rx.accumulate(lambda w, x: w, (jnp.ones(4), jnp.ones(3)), 2, params=1.0)


def test_it_belongs_into_replica_context(strategy):
    with strategy.scope(), pytest.raises(rx.errors.ContextError, match="cross-replica"):
        rx.accumulate(lambda w, x: w * x, jnp.ones(4), 2, params=1.0)
