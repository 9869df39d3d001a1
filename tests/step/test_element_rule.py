"""Which optax transformations treat each element by itself, as their programs say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from replicax.step._element_evaluation import NotElementwise
from replicax.step._element_rule import ElementRule

PARAMS = {"scalar": jnp.ones(()), "table": jnp.ones((4, 3)), "bias": jnp.ones(3)}  # bias first
BIAS, SCALAR, TABLE = range(3)

KEEP = {
    "sgd": optax.sgd(0.1),
    "schedule": optax.sgd(optax.cosine_decay_schedule(0.1, 10)),
    "adagrad": optax.adagrad(0.1),
    "clip each": optax.chain(optax.clip(1.0), optax.sgd(0.1)),
    "injected": optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
}
CHANGE = {
    "momentum": optax.sgd(0.1, momentum=0.9),
    "nesterov": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(optax.linear_schedule(0.1, 0.0, 5)),
    "rmsprop": optax.rmsprop(0.1),
    "decay": optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1)),
    "lion": optax.lion(0.1),
    "masked": optax.masked(optax.adam(0.1), {"scalar": False, "table": True, "bias": True}),
}
JOIN = {
    "clip": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    "lamb": optax.lamb(0.1),
    "adafactor": optax.adafactor(0.1, min_dim_size_to_factor=2),
    "noise": optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1)),
    "centralised": optax.chain(optax.centralize(), optax.sgd(0.1)),
    "finite": optax.apply_if_finite(optax.sgd(0.1), 3),
    "normalised": optax.normalize_by_update_norm(),
}


@pytest.mark.parametrize("name", KEEP)
def test_rules_that_keep_elements_without_a_gradient(name):
    rule = ElementRule(KEEP[name], PARAMS, [TABLE])

    assert rule.keeps == {TABLE}
    # A gradient that comes in parts may be applied part by part, where nothing else looks at it.
    assert rule.adds == (set() if name in ("adagrad", "clip each") else {TABLE})


@pytest.mark.parametrize("name", CHANGE)
def test_rules_that_change_them(name):
    rule = ElementRule(CHANGE[name], PARAMS, [TABLE])

    assert (rule.keeps, rule.adds) == (set(), set())


@pytest.mark.parametrize("name", JOIN)
def test_rules_that_are_none_for_an_element(name):
    with pytest.raises(NotElementwise):
        ElementRule(JOIN[name], PARAMS, [TABLE])


def test_a_rule_that_starts_later_is_not_taken_for_one_that_keeps():
    late = optax.chain(
        optax.scale_by_schedule(lambda n: jnp.where(n > 100, 1.0, 0.0)), optax.sgd(0.1)
    )
    decay = optax.add_decayed_weights(lambda n: jnp.where(n > 100, 0.1, 0.0))
    assert ElementRule(late, PARAMS, [TABLE]).keeps
    assert not ElementRule(optax.chain(decay, optax.sgd(0.1)), PARAMS, [TABLE]).keeps


def test_a_rule_that_mixes_leaves_is_refused():
    def update(gradients, state, params=None):
        return {**gradients, "bias": gradients["bias"] + gradients["other"]}, state

    params = {"bias": jnp.ones(3), "other": jnp.ones(3)}
    mixing = optax.GradientTransformation(lambda params: (), update)
    with pytest.raises(NotElementwise, match="two leaves"):
        ElementRule(mixing, params)


@pytest.mark.parametrize("name", ["adamw", "nesterov", "injected", "masked"])
def test_parts_get_what_the_whole_gets(name):
    transformation = {**KEEP, **CHANGE}[name]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), PARAMS)
    rule = ElementRule(transformation, params)
    state = transformation.init(params)
    parts_of = jax.tree.map(lambda x: x.ravel()[1:3] if x.ndim else x, params)
    parts = [
        jnp.broadcast_to(x, parts_of_leaf(parts_of, leaf)) if leaf is not None else x
        for x, leaf in zip(rule.start(jax.tree.leaves(params)), rule.leaf_of, strict=True)
    ]
    update, update_parts = jax.jit(transformation.update), jax.jit(rule.update)
    for _ in range(2):
        gradients = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)
        updates, state = update(gradients, state, params)
        cut = jax.tree.map(lambda x: x.ravel()[1:3] if x.ndim else x, gradients)
        found, parts = update_parts(jax.tree.leaves(cut), parts, jax.tree.leaves(parts_of))
        for x, y in zip(found, jax.tree.leaves(updates), strict=True):
            np.testing.assert_allclose(x, y.ravel()[1:3] if y.ndim else y, rtol=1e-6)
    for x, y in zip(parts, jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(x, y.ravel()[1:3] if y.ndim else y, rtol=1e-6)


def parts_of_leaf(tree, leaf):
    return jax.tree.leaves(tree)[leaf].shape
