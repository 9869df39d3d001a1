from __future__ import annotations

import jax
import jax.numpy as jnp

from replicax.collectives._compat import production_order


def test_gradients_are_told_in_the_order_of_the_backward_pass():
    """Fails where jax has moved what the order is read from: then all are told alike."""
    found = []

    def step(weights, x):
        def loss(weights):
            hidden = x
            for w in weights:
                hidden = jnp.tanh(hidden @ w)
            return hidden.sum()

        gradients = jax.grad(loss)(weights)
        found.extend(production_order([x, *gradients, jnp.ones(3) + 0, gradients[0]]))
        return gradients

    jax.make_jaxpr(step)([jnp.ones((3, 3))] * 4, jnp.ones((2, 3)))

    argument, first, second, third, last, *_, again = found
    assert argument == -1
    assert -1 < last < third < second < first
    assert again == first


def test_what_is_no_tracer_has_no_place():
    assert production_order([jnp.ones(2), 3.0]) == [-1, -1]


def test_what_a_derivative_wraps_has_no_place():
    found = []

    def loss(x):
        found.extend(production_order([x * 2]))
        return x.sum()

    jax.make_jaxpr(jax.grad(loss))(jnp.ones(2))
    assert found == [-1]
