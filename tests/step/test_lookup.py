"""`rx.embedding_lookup`: rows whose gradient is rows."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicax as rx

ROWS, DIM = 11, 2
TABLE = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
IDS = np.array([[3, 3], [0, 10], [7, 3]], np.int32)
SCALES = np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.25]], np.float32)


def loss_of(rows, scales):
    return ((rows * scales[..., None]).sum((1, 2)) ** 2).mean()


@functools.cache
def expected():
    """Value, and gradients of the table and the scales, by plain JAX."""
    return jax.value_and_grad(lambda t, s: loss_of(t[IDS], s), argnums=(0, 1))(
        jnp.asarray(TABLE), jnp.asarray(SCALES)
    )


def same(gradient, wanted):
    np.testing.assert_allclose(gradient, wanted, atol=1e-6, rtol=1e-6)


# --- the gradient --------------------------------------------------------------------------------


def test_the_gradient_of_a_variable_is_its_rows():
    table, scales = rx.Variable(TABLE), rx.Variable(SCALES)

    def loss():
        return loss_of(rx.embedding_lookup(table, IDS), scales.value)

    value, (rows, of_scales) = rx.value_and_grad(loss, [table, scales])()

    wanted, (of_table, of_ids) = expected()
    same(value, wanted)
    assert isinstance(rows, rx.IndexedSlices)
    np.testing.assert_array_equal(rows.indices, IDS.ravel())
    assert rows.values.shape == (6, DIM)
    assert rows.dense_shape == (ROWS, DIM)
    same(rows.to_dense(), of_table)
    same(of_scales, of_ids)


@pytest.mark.parametrize("argnums", [(0, 1), -2])
def test_the_gradient_of_an_argument_is_its_rows(argnums):
    def loss(params, scales):
        return loss_of(rx.embedding_lookup(params["table"], IDS), scales)

    _, gradients = rx.value_and_grad(loss, argnums=argnums)({"table": TABLE}, SCALES)

    first = gradients[0] if isinstance(argnums, tuple) else gradients
    assert isinstance(first["table"], rx.IndexedSlices)
    same(first["table"].to_dense(), expected()[1][0])
    if isinstance(argnums, tuple):
        same(gradients[1], expected()[1][1])


def test_no_array_of_the_size_of_the_table_is_made():
    table = rx.Variable(TABLE)

    @rx.function
    def step(ids):
        def loss():
            return (rx.embedding_lookup(table, ids) ** 2).sum()

        return rx.value_and_grad(loss, [table])()[1]

    text = step.lower(jnp.asarray(IDS)).compile().as_text()

    whole = [line for line in text.splitlines() if f"= f32[{ROWS},{DIM}]" in line]
    assert whole
    assert all(" parameter(" in line for line in whole)


def test_several_lookups_of_one_table_give_the_rows_of_all():
    table = rx.Variable(TABLE)

    def loss():
        first, second = (rx.embedding_lookup(table, ids) for ids in (IDS[0], IDS[1]))
        rx.embedding_lookup(table, IDS[2])  # The loss does not depend on these.
        return (first * second).sum()

    _, (gradient,) = rx.value_and_grad(loss, [table])()

    np.testing.assert_array_equal(gradient.indices, IDS.ravel())
    wanted = jax.grad(lambda t: (t[IDS[0]] * t[IDS[1]]).sum())(jnp.asarray(TABLE))
    same(gradient.to_dense(), wanted)


def test_a_table_that_is_also_read_whole_has_a_dense_gradient():
    table = rx.Variable(TABLE)

    def tied(rows, whole):
        return (rows @ whole.T).sum() + (rows**2).sum()

    _, (of_variable,) = rx.value_and_grad(
        lambda: tied(rx.embedding_lookup(table, IDS), table.value), [table]
    )()
    _, of_argument = rx.value_and_grad(lambda t: tied(rx.embedding_lookup(t, IDS), t))(TABLE)

    wanted = jax.grad(lambda t: tied(t[IDS], t))(jnp.asarray(TABLE))
    assert isinstance(of_variable, jax.Array)
    assert isinstance(of_argument, jax.Array)
    same(of_variable, wanted)
    same(of_argument, wanted)


def looked_up_in_vmap(table):
    return jax.vmap(lambda ids: rx.embedding_lookup(table, ids))(IDS)


def looked_up_in_jit(table):
    return jax.jit(lambda ids: rx.embedding_lookup(table, ids))(IDS)


def looked_up_in_scan(table):
    return jax.lax.scan(lambda c, ids: (c, rx.embedding_lookup(table, ids)), 0, IDS)[1]


def looked_up_in_a_cast_table(table):
    whole = table if isinstance(table, jax.Array) else table.value
    return rx.embedding_lookup(whole * 1, IDS)


@pytest.mark.parametrize(
    "look_up",
    [looked_up_in_vmap, looked_up_in_jit, looked_up_in_scan, looked_up_in_a_cast_table],
)
def test_elsewhere_the_gradient_is_dense_and_the_same(look_up):
    table = rx.Variable(TABLE)

    @rx.function
    def step():
        _, (gradient,) = rx.value_and_grad(lambda: loss_of(look_up(table), SCALES), [table])()
        return gradient

    def of_argument(t):
        return rx.value_and_grad(lambda t: loss_of(look_up(t), SCALES))(t)[1]

    same(step(), expected()[1][0])
    same(of_argument(jnp.asarray(TABLE)), expected()[1][0])


def test_a_frozen_table_has_no_gradient_and_a_written_one_that_of_its_new_value():
    frozen, table = rx.Variable(TABLE, trainable=False), rx.Variable(TABLE)

    def loss():
        table.assign(table.value * 2)
        return (rx.embedding_lookup(frozen, IDS) * rx.embedding_lookup(table, IDS)).sum()

    _, (gradient,) = rx.value_and_grad(loss, [table])()

    same(gradient, jax.grad(lambda t: (TABLE[IDS] * (t * 2)[IDS]).sum())(jnp.asarray(TABLE)))


def test_gradients_of_gradients():
    def inner(table):
        _, rows = rx.value_and_grad(lambda t: (rx.embedding_lookup(t, IDS) ** 3).sum())(table)
        return (rows.values**2).sum()

    def plain(table):
        return (jax.grad(lambda rows: (rows**3).sum())(table[IDS]) ** 2).sum()

    table = jnp.asarray(TABLE)
    same(jax.grad(inner)(table), jax.grad(plain)(table))
    same(rx.value_and_grad(inner)(table)[1], jax.grad(plain)(table))


# --- ids -----------------------------------------------------------------------------------------


def test_ids_out_of_range_are_refused_where_they_have_values():
    table = rx.Variable(TABLE)
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"\[-1, 11\].*11 rows"):
        rx.embedding_lookup(table, [0, 11, -1])
    with pytest.raises(rx.errors.ArgumentTypeError, match="float32"):
        rx.embedding_lookup(table, [0.0])
    with pytest.raises(rx.errors.InvalidArgumentError, match="'wrap'"):
        rx.embedding_lookup(table, [0], out_of_range="wrap")
    with pytest.raises(rx.errors.InvalidArgumentError, match="without rows"):
        rx.embedding_lookup(jnp.zeros((0, 2)), [0])


def test_what_ids_out_of_range_mean():
    ids = jnp.array([4, -1, 11])

    @jax.jit
    def compiled(table, ids):
        rows = {
            choice: rx.embedding_lookup(table, ids, out_of_range=choice)
            for choice in ("error", "clip", "zeros")
        }
        _, gradient = rx.value_and_grad(
            lambda t: rx.embedding_lookup(t, ids, out_of_range="zeros").sum()
        )(table)
        whole = rx.embedding_lookup(table.astype(jnp.int32), ids)
        return rows, gradient, whole

    rows, gradient, whole = compiled(jnp.asarray(TABLE), ids)

    assert np.isnan(rows["error"][1:]).all()
    assert int(whole[1, 0]) == np.iinfo(np.int32).min
    np.testing.assert_array_equal(rows["clip"], TABLE[[4, 0, 10]])
    np.testing.assert_array_equal(rows["zeros"], [TABLE[4], [0, 0], [0, 0]])
    np.testing.assert_array_equal(gradient.values, [[1, 1], [0, 0], [0, 0]])


# --- replicas ------------------------------------------------------------------------------------


@functools.cache
def training(replicas):
    """The gradients of a global batch on some replicas: `step(ids, scales)`."""
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])
    with strategy.scope():
        table = rx.Variable(TABLE)

    def replica_step(ids, scales):
        context = rx.get_replica_context()

        def loss():
            rows = rx.embedding_lookup(table, ids)
            return context.global_mean((rows * scales[..., None]).sum((1, 2)) ** 2)

        value, gradient = rx.value_and_grad(loss, table)()
        return value, context.all_reduce("mean", gradient)

    def step(batch):
        return strategy.run(replica_step, args=batch)

    return strategy, rx.function(step)


@jax.jit
def by_plain_jax(table, ids, scales):
    return jax.value_and_grad(lambda t: loss_of(t[ids], scales))(table)


def check(replicas, ids):
    strategy, step = training(replicas)
    scales = np.linspace(-1, 1, ids.size, dtype=np.float32).reshape(ids.shape)
    (batch,) = strategy.distribute_dataset([(ids, scales)])

    value, gradient = step(batch)

    wanted = by_plain_jax(jnp.asarray(TABLE), ids, scales)
    same(value, wanted[0])
    same(gradient.to_dense(), wanted[1])


@settings(max_examples=8)
@given(st.data())
def test_duplicates_replicas_and_remainders(data):
    count = data.draw(st.sampled_from([2, 5, 6]))  # a replica has no row; one has less; none
    ids = data.draw(st.lists(st.integers(0, ROWS - 1), min_size=2 * count, max_size=2 * count))
    check(3, np.array(ids, np.int32).reshape(count, 2))


def test_in_micro_batches_gradients_are_dense():
    table = rx.Variable(TABLE)

    def losses(ids):
        return (rx.embedding_lookup(table, ids) ** 2).sum((1, 2))

    _, (gradient,) = rx.accumulate(losses, IDS, 2, [table])

    same(gradient, jax.grad(lambda t: (t[IDS] ** 2).sum((1, 2)).mean())(jnp.asarray(TABLE)))
