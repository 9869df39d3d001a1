"""`rx.shard_optimizer`: the numbers of the transformation, and a share of its state."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

RNG = np.random.default_rng(0)
# Leaves that four replicas divide evenly or not, one smaller than that, and a scalar.
START = {
    "w": RNG.normal(size=(13, 31)).astype(np.float32),
    "b": np.zeros(31, np.float32),
    "u": RNG.normal(size=(31, 3)).astype(np.float32),
    "c": np.zeros(3, np.float32),
    "scale": np.float32(1.0),
}
BATCHES = [
    (RNG.normal(size=(rows, 13)).astype(np.float32), RNG.normal(size=rows).astype(np.float32))
    for rows in (8, 5)
]
TRANSFORMATION = optax.adamw(optax.linear_schedule(0.1, 0.01, 3))


def losses(params, batch):
    x, y = batch
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    return params["scale"] * ((hidden @ params["u"] + params["c"]).sum(1) - y) ** 2


@functools.cache
def by_hand():
    params = jax.tree.map(jnp.asarray, START)
    state = TRANSFORMATION.init(params)

    @jax.jit
    def step(params, state, batch):
        gradients = jax.grad(lambda p: losses(p, batch).mean())(params)
        updates, state = TRANSFORMATION.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for batch in BATCHES:
        params, state = step(params, state, batch)
    return params, state


def training(replicas):
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])
    with strategy.scope():
        variables = jax.tree.map(rx.Variable, START)
        optimizer = rx.Optimizer(rx.shard_optimizer(TRANSFORMATION), variables)

    def replica_step(batch):
        context = rx.get_replica_context()

        def loss():
            return context.global_mean(losses(jax.tree.map(lambda v: v.value, variables), batch))

        value, gradients = rx.value_and_grad(loss, variables)()
        rx.apply_gradients(optimizer, gradients)
        return value

    return strategy, optimizer, lambda batch: strategy.run(replica_step, args=(batch,))


def same(variables, wanted, atol=1e-6):
    for x, y in zip(jax.tree.leaves(variables), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(
            x.value if isinstance(x, rx.Variable) else x, y, atol=atol, rtol=1e-6
        )


# --- in place ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_four_replicas_take_the_steps_of_one_and_hold_a_quarter_each():
    strategy, optimizer, step = training(4)
    step = rx.function(step)

    batches = list(strategy.distribute_dataset(BATCHES))
    for batch in batches:
        step(batch)

    params, state = by_hand()
    same(optimizer.variables, params)
    same(optimizer.state, state)
    arrays = [variable._value for variable in jax.tree.leaves(optimizer.state)]
    here = sum(array.addressable_shards[0].data.nbytes for array in arrays)
    assert here <= 0.27 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    text = step.lower(batches[0]).as_text()
    assert text.count("reduce_scatter") == text.count('"stablehlo.all_gather"') == 1
    rx.check_replicas_equal(optimizer.variables)


def test_outside_of_strategies_it_is_the_transformation():
    w = rx.Variable([1.0, 2.0])
    optimizer = rx.Optimizer(rx.shard_optimizer(optax.sgd(0.5, momentum=0.5)), [w])
    rx.apply_gradients(optimizer, [jnp.array([2.0, 2.0])], apply_if=jnp.array(False))
    assert [*w.value, *optimizer.state[0].trace[0].value] == [1.0, 2.0, 0.0, 0.0]
    rx.apply_gradients(optimizer, [jnp.array([2.0, 2.0])])
    assert [*w.value, *optimizer.state[0].trace[0].value] == [0.0, 1.0, 2.0, 2.0]


def test_a_step_that_is_skipped_and_gradients_that_were_combined_before(runner, strategy):
    with strategy.scope():
        v = rx.Variable([1.0, 2.0, 3.0])
        sharded = rx.Optimizer(rx.shard_optimizer(optax.sgd(0.5, momentum=0.5)), [v])
    gradients = rx.PerReplica([jnp.array([1.0, 2.0, 3.0]), jnp.array([3.0, 2.0, 1.0])])

    def step(gradients, applies):
        def replica_step(gradient):
            rx.apply_gradients(sharded, [gradient], apply_if=applies)
            combined = rx.get_replica_context().all_reduce("mean", gradient)
            rx.apply_gradients(sharded, [combined], apply_if=~applies)

        strategy.run(replica_step, args=(gradients,))

    step = runner(step)
    step(gradients, jnp.array(False))
    assert [*v.value, *sharded.state[0].trace[0].value] == [0.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    step(gradients, jnp.array(True))
    assert [*v.value, *sharded.state[0].trace[0].value] == [-1.5, -0.5, 0.5, 3.0, 3.0, 3.0]


def test_sparse_rows_become_dense():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        table = rx.Variable(np.zeros((5, 1), np.float32))
        optimizer = rx.Optimizer(rx.shard_optimizer(optax.sgd(1.0)), [table])

    @rx.function
    def step(ids):
        def replica_step(ids):
            _, gradients = rx.value_and_grad(
                lambda: rx.embedding_lookup(table, ids).sum(), optimizer.variables
            )()
            rx.apply_gradients(optimizer, gradients)

        strategy.run(replica_step, args=(ids,))

    step(rx.PerReplica([jnp.array([0, 4]), jnp.array([4, 4])]))
    assert table.value.ravel().tolist() == [-0.5, 0.0, 0.0, 0.0, -1.5]


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_checkpoint_is_restored_on_other_replica_counts_and_without_sharding(tmp_path):
    rng = np.random.default_rng(1)
    _, optimizer, _ = training(4)
    for variable in jax.tree.leaves(optimizer.state):
        variable.assign(rng.normal(size=variable.shape).astype(variable.dtype))
    wanted = [np.asarray(variable.value) for variable in jax.tree.leaves(optimizer.state)]
    rx.checkpoint.Checkpoint(optimizer=optimizer).save(tmp_path / "four")

    _, three, _ = training(3)
    with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        plain = rx.Optimizer(TRANSFORMATION, jax.tree.map(rx.Variable, START))
    for other in (three, plain):
        checkpoint = rx.checkpoint.Checkpoint(optimizer=other)
        checkpoint.restore(tmp_path / "four").assert_consumed()
        for variable, value in zip(jax.tree.leaves(other.state), wanted, strict=True):
            np.testing.assert_array_equal(variable.value, value)


# --- functional ----------------------------------------------------------------------------------


def test_the_functional_style(strategy):
    tx = rx.shard_optimizer(TRANSFORMATION)
    params = jax.tree.map(jnp.asarray, START)
    with strategy.scope():
        state = tx.init(params)
    mu = state[0].mu
    assert isinstance(mu["w"], rx.PerReplica)
    assert [x.shape for x in mu["w"].values] == [(202,), (202,)]

    def replica_step(params, state, batch):
        context = rx.get_replica_context()
        _, gradients = rx.value_and_grad(lambda p: context.global_mean(losses(p, batch)))(params)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    @functools.partial(rx.function, donate=("params", "state"))
    def step(params, state, batch):
        return strategy.run(replica_step, args=(params, state, batch))

    for batch in strategy.distribute_dataset(BATCHES):
        params, state = step(params, state, batch)

    wanted = by_hand()
    same(params, wanted[0])
    with strategy.scope():
        whole = tx.join_state(state, params)
        again = tx.join_state(tx.cut_state(whole, params), params)
    assert jax.tree.structure(whole) == jax.tree.structure(wanted[1])
    same(whole, wanted[1])
    same(again, wanted[1])


def test_outside_of_strategies_there_is_one_share():
    tx = rx.shard_optimizer(optax.sgd(0.5, momentum=0.5))
    params = {"w": jnp.ones((2, 2))}
    state = tx.init(params)
    assert state[0].trace["w"].shape == (4,)
    updates, state = tx.update({"w": jnp.ones((2, 2))}, state, params)
    np.testing.assert_array_equal(updates["w"], np.full((2, 2), -0.5))
    whole = tx.join_state(state, params)
    np.testing.assert_array_equal(whole[0].trace["w"], np.ones((2, 2)))
    np.testing.assert_array_equal(tx.cut_state(whole, params)[0].trace["w"], np.ones(4))


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clip_by_global_norm", "lamb"])
def test_a_transformation_that_joins_elements_is_refused(strategy, name):
    transformation = {
        "clip_by_global_norm": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)),
        "lamb": optax.lamb(0.1),
    }[name]
    with strategy.scope():
        w = rx.Variable([1.0, 2.0])
        with pytest.raises(rx.errors.UnimplementedError, match=r"rx\.clip_by_global_norm"):
            rx.Optimizer(rx.shard_optimizer(transformation), [w])
        with pytest.raises(rx.errors.UnimplementedError, match="reduce_sum"):
            rx.shard_optimizer(transformation).init([jnp.ones(2)])


def test_other_mistakes_are_named(strategy):
    tx = rx.shard_optimizer(optax.adam(0.1))
    with pytest.raises(rx.errors.ArgumentTypeError, match="no transformation"):
        rx.shard_optimizer(0.1)
    params = [jnp.ones(4)]
    with strategy.scope():
        w = rx.Variable(jnp.ones(4))
        with pytest.raises(rx.errors.UnimplementedError, match="Shard the whole"):
            rx.Optimizer(optax.chain(optax.clip_by_global_norm(1.0), tx), [w])
        optimizer = rx.Optimizer(tx, [w])
        with pytest.raises(rx.errors.ContextError, match="cross-replica"):
            rx.apply_gradients(optimizer, params)
        two = tx.init(params)
    with pytest.raises(rx.errors.ContextError, match="join_state"):
        tx.join_state(two, params)
    with pytest.raises(rx.errors.InvalidArgumentError, match="no parameters"):
        tx.update(params, two)
    shares = jax.tree.map(
        lambda x: x.values[0] if isinstance(x, rx.PerReplica) else x,
        two,
        is_leaf=lambda x: isinstance(x, rx.PerReplica),
    )
    with pytest.raises(rx.errors.InvalidArgumentError, match="1 replicas a share has 4 elements"):
        tx.update(params, shares, params)
