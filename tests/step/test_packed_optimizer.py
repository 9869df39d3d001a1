"""`rx.pack_optimizer`, and `rx.Optimizer` of packed variables: the numbers of the plain ones."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

RNG = np.random.default_rng(0)
START = {
    "layers": [
        {"w": RNG.normal(size=(3, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}
        for _ in range(2)
    ],
    "scale": np.float32(2.0),
    "empty": np.zeros((0, 2), np.float32),
    "none": None,
}
AXES = jax.tree.map(np.ndim, START)
NAMES = jax.tree_util.tree_map_with_path(lambda path, _: str(path[-1]), START)
BATCHES = [RNG.normal(size=(rows, 3)).astype(np.float32) for rows in (8, 5, 8)]


def is_matrix(params):
    return jax.tree.map(lambda x: x.ndim > 1, params)


def by_name(params):
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "slow" if "b" in str(path[-1]) else "fast", params
    )


MOMENTUM = optax.sgd(optax.linear_schedule(0.1, 0.0, 3), momentum=0.9, nesterov=True)
TRANSFORMATIONS = {
    "adam": (optax.adam(0.1), None),
    "decay of matrices": (optax.adamw(0.1, mask=is_matrix), AXES),
    "labels": (
        optax.multi_transform({"slow": MOMENTUM, "fast": optax.sgd(0.1)}, by_name),
        NAMES,
    ),
    "injected": (
        optax.inject_hyperparams(optax.adam, "mu_dtype")(0.1, mu_dtype=jnp.bfloat16),
        None,
    ),
}


def close(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(
            np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_packed_parameters_get_what_the_leaves_get(name):
    plain, by = TRANSFORMATIONS[name]
    tx = rx.pack_optimizer(plain)
    whole = {"rest": jax.tree.map(jnp.asarray, START), "alone": jnp.ones(2)}

    def packed(tree):
        return {**tree, "rest": rx.pack(tree["rest"], by=by)}

    parts = packed(whole)
    state, kept = plain.init(whole), tx.init(parts)

    @jax.jit
    def both(gradients, whole, state, parts, kept):
        updates, state = plain.update(gradients, state, whole)
        of_parts, kept = tx.update(packed(gradients), kept, parts)
        return (
            optax.apply_updates(whole, updates),
            state,
            optax.apply_updates(parts, of_parts),
            kept,
        )

    for _ in range(3):
        gradients = jax.tree.map(lambda x: jnp.asarray(RNG.normal(size=x.shape), x.dtype), whole)
        whole, state, parts, kept = both(gradients, whole, state, parts, kept)

    close({**parts, "rest": parts["rest"].unpack()}, whole)
    close(tx.unpack_state(kept, parts), state)
    close(tx.pack_state(state, parts), kept)


def test_a_state_that_starts_from_the_parameters_and_one_number_a_leaf():
    def init(params):
        return (jnp.zeros((), jnp.int32), jax.tree.map(lambda x: 2 * x + x.ndim, params))

    def update(gradients, state, params=None, *, factor=1.0):
        count, slow = state
        slow = jax.tree.map(lambda s, g: factor * (s + g), slow, gradients)
        return jax.tree.map(lambda s, p: s - p, slow, params), (count + 1, slow)

    plain = optax.GradientTransformationExtraArgs(init, update)
    params = {"a": jnp.arange(3.0), "b": jnp.ones((2, 2))}
    tx, packed = rx.pack_optimizer(plain), rx.pack(params)

    close(tx.unpack_state(tx.init(packed), packed), plain.init(params))
    updates, _ = tx.update(packed, tx.init(packed), packed, factor=2.0)
    wanted, _ = jax.jit(plain.update)(params, plain.init(params), params, factor=2.0)
    close(updates.unpack(), wanted)
    assert tx.init(params)[1].keys() == {"a", "b"}  # Nothing is packed.


# -- in steps -------------------------------------------------------------------------------------


@jax.jit  # For the eager runner.
def losses(params, x):
    for layer in params["layers"]:
        x = x @ layer["w"] + layer["b"]
    return params["scale"] * x.sum(1)


@pytest.fixture(scope="module")
def wanted():
    params, tx = jax.tree.map(jnp.asarray, START), optax.adam(0.1)
    state = tx.init(params)

    @jax.jit
    def step(params, state, batch):
        gradients = jax.grad(lambda p: losses(p, batch).mean())(params)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    found = []
    for batch in BATCHES:
        params, state = step(params, state, batch)
        found.append((params, state))
    return found


def test_functional_state_in_a_step_is_proved_and_travels_in_one_piece(strategy, wanted):
    tx = rx.pack_optimizer(optax.adam(0.1))

    @rx.function(donate="state")
    def step(state, batch):
        def replica_step(state, x):
            ctx = rx.get_replica_context()
            params, kept = state
            loss, gradients = jax.value_and_grad(lambda p: ctx.global_mean(losses(p.unpack(), x)))(
                params
            )
            gradients, _ = rx.clip_by_global_norm(ctx.all_reduce("mean", gradients), 1e6)
            updates, kept = tx.update(gradients, kept, params)
            return (optax.apply_updates(params, updates), kept), loss

        return strategy.run(replica_step, args=(state, batch))

    params = jax.tree.map(jnp.asarray, rx.pack(START))
    state = (params, tx.init(params))
    batches = list(strategy.distribute_dataset(BATCHES))
    assert step.lower(state, batches[0]).as_text().count('"stablehlo.all_reduce"') == 1
    for batch in batches:
        state, _ = step(state, batch)

    params, kept = state
    close(params.unpack(), wanted[-1][0])
    close(tx.unpack_state(kept, params), wanted[-1][1])
    rx.check_replicas_equal(params)


def test_packed_variables_and_their_checkpoint(runner, strategy, wanted, tmp_path):
    def made(by=None):
        with strategy.scope():
            cells = jax.tree.map(rx.Variable, rx.pack(START, by=by))
            return cells, rx.Optimizer(optax.adam(0.1), cells)

    cells, optimizer = made()

    def step(batch):
        def replica_step(x):
            ctx = rx.get_replica_context()
            loss, gradients = rx.value_and_grad(
                lambda: ctx.global_mean(losses(cells.unpack(), x)), cells
            )()
            rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients))
            return loss

        return strategy.run(replica_step, args=(batch,))

    step = runner(step)
    steps = len(BATCHES) if runner.compiled else 1
    for batch in strategy.distribute_dataset(BATCHES[:steps]):
        step(batch)

    params, state = wanted[steps - 1]
    close(cells.unpack(), params)
    mu = optimizer.state[0].mu["empty"]  # The first leaf of the pack.
    np.testing.assert_allclose(mu.unpack()[1], state[0].mu["layers"][0]["b"], atol=1e-6)
    if runner.compiled:
        rx.checkpoint.Checkpoint(optimizer=optimizer).save(tmp_path / "saved")
        again, restored = made()
        rx.checkpoint.Checkpoint(optimizer=restored).restore(tmp_path / "saved").assert_consumed()
        close(again.unpack(), jax.tree.map(jnp.asarray, cells.unpack()))
        assert restored.state[0].count.value == 3
        with pytest.raises(rx.errors.InvalidArgumentError, match="nothing was restored"):
            rx.checkpoint.Checkpoint(optimizer=made(AXES)[1]).restore(tmp_path / "saved")


def test_a_large_table_in_a_packed_tree_has_rows_for_a_gradient():
    params = rx.pack({"b": jnp.ones(3), "c": jnp.ones(2), "table": jnp.ones((10_000, 4))})

    def loss(params):
        whole = params.unpack()
        rows = rx.embedding_lookup(whole["table"], jnp.array([1, 1, 3]))
        return (rows**2).sum() + whole["b"].sum()

    _, gradients = rx.value_and_grad(loss)(params)
    assert isinstance(gradients["table"], rx.IndexedSlices)
    tx = rx.sparse_rows(rx.pack_optimizer(optax.sgd(0.1)))

    @jax.jit
    def updated(gradients, params):
        updates, _ = tx.update(gradients, tx.init(params), params)
        assert isinstance(updates["table"], rx.IndexedSlices)
        return optax.apply_updates(params, updates).unpack()

    found = updated(gradients, params)
    np.testing.assert_allclose(found["table"][:5, 0], [1.0, 0.6, 1.0, 0.8, 1.0], rtol=1e-6)
    np.testing.assert_allclose(found["b"], [0.9] * 3, rtol=1e-6)


# -- what is refused ------------------------------------------------------------------------------

PACKED = rx.pack(START)
OTHER = rx.pack(START, by=AXES)
SCALARS = jax.tree.map(lambda x: np.float32(0), START)
SGD = rx.pack_optimizer(optax.sgd(0.1, momentum=0.9))


def two_schedules(params):
    return jax.tree.map(lambda x: ("a", "b")[x.ndim > 1], params)


def own_rates(gradients, state, params=None):
    return jax.tree.map(lambda g: g / max(g.size, 1), gradients), state


REFUSED = {
    "mask": (
        lambda: rx.pack_optimizer(optax.adamw(0.1, mask=is_matrix)).init(PACKED),
        rx.errors.InvalidArgumentError,
        r"(?s)\['layers'\]\[0\]\['w'\] .*way 1.*\['layers'\]\[1\]\['b'\] .*way 2.*by=labels",
    ),
    "counts": (
        lambda: rx.pack_optimizer(
            optax.multi_transform({"a": optax.adam(0.1), "b": optax.adam(0.1)}, two_schedules)
        ).init(PACKED),
        rx.errors.InvalidArgumentError,
        "different ways",
    ),
    "sizes": (
        lambda: rx.pack_optimizer(optax.GradientTransformation(lambda params: (), own_rates)).init(
            PACKED
        ),
        rx.errors.InvalidArgumentError,
        r"way 3",
    ),
    "lamb": (
        lambda: rx.pack_optimizer(optax.lamb(0.1)).init(PACKED),
        rx.errors.UnimplementedError,
        "reduce_sum",
    ),
    "clip": (
        lambda: rx.Optimizer(
            optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
            jax.tree.map(rx.Variable, PACKED),
        ),
        rx.errors.UnimplementedError,
        "rx.clip_by_global_norm",
    ),
    "sharded": (
        lambda: rx.shard_optimizer(optax.sgd(0.1)).init(PACKED),
        rx.errors.UnimplementedError,
        "as it is",
    ),
    "sharded inside": (
        lambda: rx.Optimizer(rx.shard_optimizer(optax.sgd(0.1)), jax.tree.map(rx.Variable, PACKED)),
        rx.errors.UnimplementedError,
        "as it is",
    ),
    "no parameters": (
        lambda: SGD.update(PACKED, ()),
        rx.errors.InvalidArgumentError,
        "no parameters",
    ),
    "gradients": (
        lambda: SGD.update(OTHER, SGD.init(PACKED), PACKED),
        rx.errors.InvalidArgumentError,
        "another structure",
    ),
    "state": (
        lambda: SGD.update(PACKED, SGD.init(OTHER), PACKED),
        rx.errors.InvalidArgumentError,
        r"there is <.*leaves, .*> where <",
    ),
    "whole state": (
        lambda: SGD.update(PACKED, optax.sgd(0.1, momentum=0.9).init(START), PACKED),
        rx.errors.InvalidArgumentError,
        "there is an array where <",
    ),
    "packed already": (
        lambda: SGD.pack_state(SGD.init(PACKED), PACKED),
        rx.errors.InvalidArgumentError,
        "its structure is",
    ),
    "state of other shapes": (
        lambda: SGD.pack_state(optax.sgd(0.1, momentum=0.9).init(SCALARS), PACKED),
        rx.errors.InvalidArgumentError,
        r"a leaf has shape \(\)",
    ),
    "no transformation": (
        lambda: rx.pack_optimizer(0.1),
        rx.errors.ArgumentTypeError,
        "no transformation",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    call, error, words = REFUSED[name]
    with pytest.raises(error, match=words) as caught:
        call()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301
