"""Which operations mix a replica's rows in a way that no mean over the replicas undoes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.collectives import looking_ahead
from replicax.step._looking import look
from replicax.verification._mixing import mixings

X = np.arange(24, dtype=np.float32).reshape(8, 3)


def context():
    return rx.get_replica_context()


def found(strategy, fn):
    """The operations that mix, and those that are not linear in what they give."""
    (batch,) = strategy.distribute_dataset([X])
    step = rx.function(lambda batch: strategy.run(fn, args=(batch,)))
    with looking_ahead():
        traced = look(step, (batch,), {}).traced
    return [(one.op, one.then) for one in mixings(traced)]


def gradient(x):
    def loss(w):
        return jnp.mean((x @ w - 1.0) ** 2)

    return context().all_reduce("mean", jax.grad(loss)(jnp.ones(3)))


LINEAR = {
    "a mean": lambda x: context().all_reduce("mean", jnp.mean(x**2)),
    "a gradient": gradient,
    "a softmax of each row": lambda x: context().global_mean(jax.nn.softmax(x)[:, 0]),
    "the best of each row": lambda x: context().global_mean(jnp.max(x, axis=1)),
    "sums that were combined": lambda x: context().global_sum(x) / context().global_sum(x**2),
    "rows that were gathered": lambda x: jnp.max(context().all_gather(x, axis=0)),
    "a product with weights": lambda x: context().global_mean((x @ jnp.ones((3, 2)))[:, 0]),
    "sums that are chosen": lambda x: jnp.where(True, jnp.sum(x), 0.0),
}
NOT_LINEAR = {
    "a top-k": (lambda x: jax.lax.top_k(x[:, 0], 2)[0], ("top_k", "top_k")),
    "a ratio of sums": (lambda x: jnp.sum(x) / jnp.sum(x**2), ("reduce_sum", "div")),
    "a root of a mean": (lambda x: jnp.sqrt(jnp.mean(x)), ("reduce_sum", "sqrt")),
    "rows with rows": (lambda x: x @ x.T, ("dot_general", "dot_general")),
    "a maximum, after a transposition": (
        lambda x: jnp.max(x.T.reshape(3, 1, -1), axis=2),
        ("reduce_max", "reduce_max"),
    ),
    "inside of a jit": (lambda x: jax.jit(jnp.median)(x[:, 0]), ("sort", "sort")),
    "a gradient that is cut": (
        lambda x: jnp.minimum(jax.grad(lambda w: jnp.mean((x @ w) ** 2))(jnp.ones(3)), 1.0),
        ("dot_general", "min"),
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_what_can_be_averaged_is_not_named(strategy, name):
    assert found(strategy, LINEAR[name]) == []


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_cannot_be_averaged_is_named(strategy, name):
    fn, expected = NOT_LINEAR[name]
    assert expected in found(strategy, fn)


def test_lines_are_told(strategy):
    (batch,) = strategy.distribute_dataset([X])
    step = rx.function(lambda batch: strategy.run(lambda x: jnp.max(x + 1), args=(batch,)))
    with looking_ahead():
        traced = look(step, (batch,), {}).traced
    (one,) = mixings(traced)
    text = str(one)
    assert text.startswith("`reduce_max` at ")
    assert "test_mixing.py:" in text
