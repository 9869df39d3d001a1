"""Sparse rows in `rx.apply_gradients`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

ROWS, DIM = 9, 2
TABLE = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
# Duplicates in a batch, rows that come again, and a remainder.
BATCHES = [np.array(ids, np.int32) for ids in ([3, 3, 0, 8], [3, 1, 1, 5], [0, 3, 7])]


def training(strategy, transformation, **options):
    with strategy.scope():
        table, bias = rx.Variable(TABLE, name="table"), rx.Variable(1.0, name="bias")
        optimizer = rx.Optimizer(transformation, [table, bias], **options)

    def replica_step(ids, look_up):
        context = rx.get_replica_context()

        def loss():
            return context.global_mean(((look_up(table, ids) + bias.value) ** 2).sum(1))

        _, gradients = rx.value_and_grad(loss, [table, bias])()
        gradients = context.all_reduce("mean", gradients)
        is_sparse = isinstance(gradients[0], rx.IndexedSlices)
        rx.apply_gradients(optimizer, gradients)
        return is_sparse

    return optimizer, replica_step


def trained(strategy, runner, transformation, look_up=rx.embedding_lookup, **options):
    optimizer, replica_step = training(strategy, transformation, **options)
    step = runner(lambda ids: strategy.run(replica_step, args=(ids, look_up)))
    for ids in strategy.distribute_dataset(BATCHES):
        step(ids)
    return [np.asarray(v.value) for v in jax.tree.leaves((optimizer.variables, optimizer.state))]


def plain(table, ids):
    return table.value[ids]


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_the_numbers_are_those_of_dense_gradients_on_one_device(strategy, name):
    transformation = {
        "sgd": optax.sgd(optax.linear_schedule(0.2, 0.1, 3)),
        "adagrad": optax.adagrad(0.1),
        "adam": optax.adam(0.1),
    }[name]
    one = rx.OneDeviceStrategy("cpu:0")

    found = trained(strategy, rx.function, transformation)

    for x, y in zip(found, trained(one, rx.function, transformation, plain), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)


def test_a_lazy_rule_leaves_rows_without_a_gradient_alone(strategy):
    transformation = optax.adam(0.1)

    table, bias, count, mu, _, nu, _ = trained(
        strategy, rx.function, transformation, sparse_rows="lazy"
    )

    params = (jnp.asarray(TABLE), jnp.ones(()))
    state = transformation.init(params)

    @jax.jit
    def step(params, state, ids):
        gradients = jax.grad(lambda p: ((p[0][ids] + p[1]) ** 2).sum(1).mean())(params)
        updates, new = transformation.update(gradients, state, params)
        seen = jnp.isin(jnp.arange(ROWS), ids)[:, None]
        old, adam = state[0], new[0]
        adam = adam._replace(
            mu=(jnp.where(seen, adam.mu[0], old.mu[0]), adam.mu[1]),
            nu=(jnp.where(seen, adam.nu[0], old.nu[0]), adam.nu[1]),
        )
        params = (params[0] + jnp.where(seen, updates[0], 0), params[1] + updates[1])
        return params, (adam, *new[1:])

    for ids in BATCHES:
        params, state = step(params, state, ids)
    adam = state[0]
    same = np.testing.assert_allclose
    for x, y in [(table, params[0]), (bias, params[1]), (mu, adam.mu[0]), (nu, adam.nu[0])]:
        same(x, y, atol=1e-6)
    assert count == 3
    np.testing.assert_array_equal(table[[2, 4, 6]], TABLE[[2, 4, 6]])


@pytest.mark.parametrize("lazy", [False, True], ids=["exact", "lazy"])
def test_state_of_the_functional_style_takes_sparse_rows_too(strategy, lazy):
    transformation = optax.adam(0.1) if lazy else optax.adagrad(0.1)
    sparse = rx.sparse_rows(transformation, lazy=lazy)
    seen = []

    @rx.function(donate="state")
    def step(state, ids):
        def replica_step(state, ids):
            context = rx.get_replica_context()

            def loss(params):
                rows = rx.embedding_lookup(params[0], ids)
                return context.global_mean(((rows + params[1]) ** 2).sum(1))

            _, gradients = rx.value_and_grad(loss)(state[0])
            gradients = context.all_reduce("mean", gradients)
            updates, kept = sparse.update(gradients, state[1], state[0])
            seen.append([type(leaf) for leaf in (gradients[0], updates[0])])
            return optax.apply_updates(state[0], updates), kept

        return strategy.run(replica_step, args=(state, ids))

    params = (jnp.asarray(TABLE), jnp.ones(()))
    state = (params, sparse.init(params))
    for ids in strategy.distribute_dataset(BATCHES):
        state = step(state, ids)

    option = {"sparse_rows": "lazy"} if lazy else {}
    of_variables = trained(strategy, rx.function, transformation, **option)
    for x, y in zip(jax.tree.leaves(state), of_variables, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert seen[0] == [rx.IndexedSlices] * 2


def test_sparse_rows_need_parameters_and_a_rule():
    slices = rx.IndexedSlices(jnp.ones((1, DIM)), [3], (ROWS, DIM))
    dense = rx.sparse_rows(optax.adam(0.1))

    with pytest.raises(rx.errors.InvalidArgumentError, match="no parameters"):
        dense.update(slices, dense.init(TABLE))
    updates, _ = dense.update(slices, dense.init(TABLE), TABLE)
    assert updates.shape == TABLE.shape  # Adam is not exact on rows alone.
    with pytest.raises(rx.errors.InvalidArgumentError, match="rows"):
        TABLE[:2] + slices
    with pytest.raises(rx.errors.ArgumentTypeError, match="sparse_rows"):
        rx.sparse_rows(3)


def test_a_lazy_rule_must_be_one_for_each_element():
    table = rx.Variable(TABLE)
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    optimizer = rx.Optimizer(clipped, [table], sparse_rows="lazy")
    with pytest.raises(rx.errors.UnimplementedError, match="reduce_sum"):
        rx.apply_gradients(optimizer, [rx.IndexedSlices(TABLE[:1], [0], TABLE.shape)])
    with pytest.raises(rx.errors.InvalidArgumentError, match="'lazily'"):
        rx.Optimizer(optax.sgd(0.1), [table], sparse_rows="lazily")


def test_a_rule_that_joins_elements_gets_the_whole_gradient():
    table = rx.Variable(TABLE)
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0))
    gradient = rx.IndexedSlices(np.float32([[1, 0], [2, 4]]), [3, 3])
    rx.apply_gradients(rx.Optimizer(clipped, [table]), [gradient])
    np.testing.assert_allclose(table.value[3], TABLE[3] - [0.6, 0.8], rtol=1e-6)


def test_a_step_that_is_skipped_changes_no_row():
    table = rx.Variable(TABLE)
    optimizer = rx.Optimizer(optax.adagrad(0.1), [table])
    gradient = rx.IndexedSlices(TABLE[:2], [4, 4], TABLE.shape)
    sums = optimizer.state[0].sum_of_squares[0]

    rx.apply_gradients(optimizer, [gradient], apply_if=jnp.array(False))
    np.testing.assert_array_equal(table.value, TABLE)
    np.testing.assert_array_equal(sums.value, np.full_like(TABLE, 0.1))
    rx.apply_gradients(optimizer, [gradient], apply_if=jnp.array(True))

    changed = (np.asarray(sums.value) != np.float32(0.1)).any(1)
    np.testing.assert_array_equal(changed, np.arange(ROWS) == 4)
    np.testing.assert_allclose(sums.value[4], 0.1 + (TABLE[0] + TABLE[1]) ** 2, rtol=1e-6)


def test_rows_of_another_table_are_refused():
    table = rx.Variable(TABLE)
    optimizer = rx.Optimizer(optax.sgd(1.0), [table])
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"\[9\].*9 rows"):
        rx.apply_gradients(optimizer, [rx.IndexedSlices(TABLE[:1], [ROWS])])
    with pytest.raises(rx.errors.InvalidArgumentError, match="does not fit"):
        rx.apply_gradients(optimizer, [rx.IndexedSlices(TABLE[:1, :1], [0])])
    rx.apply_gradients(optimizer, [rx.IndexedSlices(TABLE[:1], [-1])])  # As in `to_dense`.
    np.testing.assert_allclose(table.value[-1], TABLE[-1] - TABLE[0], rtol=1e-6)


def test_no_rows_change_nothing():
    table = rx.Variable(TABLE)
    optimizer = rx.Optimizer(optax.sgd(0.1), [table])
    nothing = rx.IndexedSlices(np.zeros((0, DIM), np.float32), np.zeros(0, np.int32), TABLE.shape)
    rx.apply_gradients(optimizer, [nothing])
    np.testing.assert_array_equal(table.value, TABLE)


def test_the_scale_of_a_loss_divides_values_and_not_indices():
    table = rx.Variable(TABLE)
    optimizer = rx.Optimizer(optax.sgd(1.0), [table])
    scale = rx.precision.LossScale(8.0)
    gradient = rx.IndexedSlices(np.full((1, DIM), 8.0, np.float32), [5], TABLE.shape)
    assert scale.apply_gradients(optimizer, [gradient])
    np.testing.assert_allclose(table.value[5], TABLE[5] - 1)
    np.testing.assert_array_equal(table.value[:5], TABLE[:5])


def test_other_optimizers_get_whole_arrays():
    class Descent:
        is_ours = True

    def keep(optimizer, gradients, variables):
        seen.extend(gradients)

    seen = []
    rx.register_optimizer(lambda x: hasattr(x, "is_ours"), keep)
    rx.apply_gradients(Descent(), [rx.IndexedSlices(TABLE[:1], [5], TABLE.shape)], [None])
    np.testing.assert_array_equal(seen[0][5], TABLE[0])


def test_replicas_with_different_numbers_of_rows(strategy):
    with strategy.scope():
        table = rx.Variable(TABLE)
        optimizer = rx.Optimizer(optax.sgd(0.5), [table])

    def replica_step(ids):
        _, gradients = rx.value_and_grad(
            lambda: rx.embedding_lookup(table, ids).sum(), optimizer.variables
        )()
        gradients = rx.get_replica_context().all_reduce("sum", gradients)
        rx.apply_gradients(optimizer, gradients)

    strategy.run(replica_step, args=(rx.PerReplica([jnp.array([8]), jnp.array([1, 8, 8])]),))

    counts = np.bincount([8, 1, 8, 8], minlength=ROWS)[:, None]
    np.testing.assert_allclose(table.value, TABLE - 0.5 * counts, rtol=1e-6)


def test_rows_that_were_not_combined_are_refused(strategy):
    with strategy.scope():
        table = rx.Variable(TABLE)
        optimizer = rx.Optimizer(optax.sgd(0.1), [table])

    def replica_step(ids):
        _, gradients = rx.value_and_grad(
            lambda: rx.embedding_lookup(table, ids).sum(), optimizer.variables
        )()
        rx.apply_gradients(optimizer, gradients)

    ids = rx.PerReplica([jnp.array([1, 2]), jnp.array([3, 4])])
    with pytest.raises(rx.errors.VaryingWriteError, match="apply_gradients"):
        rx.function(lambda: strategy.run(replica_step, args=(ids,)))()


@pytest.mark.parametrize("name", ["adagrad"])
def test_neither_the_table_nor_its_state_is_copied(strategy, name):
    _, replica_step = training(strategy, getattr(optax, name)(0.1))
    ids = rx.PerReplica([jnp.array([1, 2]), jnp.array([3, 4])])
    step = rx.function(lambda: strategy.run(replica_step, args=(ids, rx.embedding_lookup)))

    text = step.lower().compile().as_text()

    made = [line for line in text.splitlines() if f"= f32[{ROWS},{DIM}]" in line]
    assert made
    kinds = {line.partition("{1,0} ")[2].partition("(")[0] for line in made}
    in_place = {"scatter", "fusion", "call", "dynamic-update-slice"}
    assert kinds <= {"parameter", "get-tuple-element"} | in_place
