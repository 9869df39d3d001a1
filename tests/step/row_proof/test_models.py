"""Models with a masked loss: their gradients are proved free of padding, not merely accepted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from replicax.step._row_proof import Dirty, Input, Known, collapsed, read_rows

AXIS, REPLICAS, ROWS, STEPS, WIDTH, CLASSES = "replica", 2, 4, 5, 6, 3


def weights(**shapes):
    return {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}


def dense(p, batch):
    return jax.nn.gelu(batch["x"] @ p["w1"] + p["b1"]) @ p["w2"]


def convolutional(p, batch):
    x = lax.conv_general_dilated(
        batch["image"], p["k1"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = lax.conv_general_dilated(
        x,
        p["k2"],
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=4,
    )
    return x.mean((1, 2)) @ p["w"]


def lstm(p, batch):
    x = p["embedding"][batch["tokens"]]

    def cell(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ p["wx"] + h @ p["wh"] + p["b"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((x.shape[0], 8))
    _, hidden = lax.scan(jax.checkpoint(cell), (zeros, zeros), x.swapaxes(0, 1))
    return hidden.mean(0) @ p["out"]


def attention(p, batch):
    x = p["embedding"][batch["tokens"]]
    q, k, v = ((x @ p[name]).reshape(*x.shape[:2], 2, 3) for name in "qkv")
    x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
    x = jax.nn.standardize(x, axis=-1)
    keep = jax.random.bernoulli(jax.random.key(lax.axis_index(AXIS)), 0.9, x.shape)
    return jnp.where(keep, x, 0).mean(1) @ p["out"]


MODELS = {
    "dense": (dense, weights(w1=(WIDTH, 8), b1=(8,), w2=(8, CLASSES))),
    "convolutional": (
        convolutional,
        weights(k1=(3, 3, 2, 4), k2=(3, 3, 1, 4), w=(4, CLASSES)),
    ),
    "lstm": (lstm, weights(embedding=(7, 6), wx=(6, 32), wh=(8, 32), b=(32,), out=(8, CLASSES))),
    "attention": (
        attention,
        weights(embedding=(7, 6), q=(6, 6), k=(6, 6), v=(6, 6), out=(6, CLASSES)),
    ),
}
BATCH = {
    "image": np.ones((ROWS, 6, 6, 2), np.float32),
    "label": np.ones(ROWS, np.int32),
    "tokens": np.ones((ROWS, STEPS), np.int32),
    "x": np.ones((ROWS, WIDTH), np.float32),
}


def states_of(fn, params):
    """States of the results of `fn(params, batch, mask)`."""
    program = jax.make_jaxpr(
        lambda p, batch, real: fn(p, batch, jnp.arange(ROWS) < real),
        axis_env=[(AXIS, REPLICAS)],
    )(params, BATCH, np.int32(3))
    inputs = [Input.MIRRORED] * len(jax.tree.leaves(params)) + [Input.PADDED] * len(BATCH)
    return read_rows(
        program,
        [*inputs, Input.COUNT],
        axis_name=AXIS,
        num_replicas=REPLICAS,
        capacity=ROWS,
        is_strict=True,
    )


def loss_of(model, p, batch, mask):
    """Mean of the loss of real rows; of all rows without a mask."""
    per_row = optax.softmax_cross_entropy_with_integer_labels(model(p, batch), batch["label"])
    if mask is None:
        return lax.pmean(per_row.mean(), AXIS)
    total = jnp.sum(per_row, where=mask)
    return lax.psum(total, AXIS) / lax.psum(mask.sum().astype(jnp.float32), AXIS)


def updated(model, tx, *, with_mask):
    def step(p, batch, mask):
        loss, grads = jax.value_and_grad(
            lambda p: loss_of(model, p, batch, mask if with_mask else None)
        )(p)
        updates, _ = tx.update(lax.pmean(grads, AXIS), tx.init(p), p)
        return loss, optax.apply_updates(p, updates)

    return step


@pytest.mark.parametrize("name", MODELS)
def test_a_masked_loss_keeps_padding_out_of_all_weights(name):
    model, params = MODELS[name]
    states = states_of(updated(model, optax.adam(0.1), with_mask=True), params)
    assert [isinstance(state, Known) and state.is_clean for state in states] == [True] * len(states)


@pytest.mark.parametrize("name", MODELS)
def test_without_a_mask_padding_is_in_all_weights(name):
    model, params = MODELS[name]
    states = states_of(updated(model, optax.sgd(0.1), with_mask=False), params)
    assert [type(collapsed(state)) for state in states] == [Dirty] * len(states)


def normalised(x, mean):
    center = mean(x)
    variance = mean((x - center) ** 2)
    return (x - center) * lax.rsqrt(variance + 1e-3)


def global_mean(mask):
    def mean(x):
        total = jnp.sum(x, 0, where=mask[:, None])
        return lax.psum(total, AXIS) / lax.psum(mask.sum().astype(jnp.float32), AXIS)

    return mean


@pytest.mark.parametrize(
    ("mean", "found"),
    [
        (lambda mask: lambda x: x.mean(0), Dirty),
        (lambda mask: lambda x: lax.pmean(x.mean(0), AXIS), Dirty),
        (global_mean, Known),
        (lambda mask: lambda x: jnp.mean(x, 0, where=mask[:, None]), Known),
    ],
    ids=["local", "mean of local means", "global", "local and masked"],
)
def test_statistics_of_a_batch_normalisation(mean, found):
    def step(p, batch, mask):
        def loss(p):
            model = lambda p, batch: normalised(batch["x"] @ p["w1"], mean(mask)) @ p["w2"]  # noqa: E731
            return loss_of(model, p, batch, mask)

        return jax.grad(loss)(p)

    states = states_of(step, weights(w1=(WIDTH, 8), w2=(8, CLASSES)))
    assert [type(state) for state in states] == [found] * 2
    assert found is Dirty or all(state.is_clean for state in states)


def test_contrast_with_the_rows_of_all_replicas():
    def step(p, batch, mask):
        def loss(p):
            left = jnp.tanh(batch["x"] @ p["w1"])
            others, real = (lax.all_gather(v, AXIS, tiled=True) for v in (left, mask))
            logits = jnp.where(real, left @ others.T, -1e9)
            own = lax.axis_index(AXIS) * ROWS + jnp.arange(ROWS)
            per_row = optax.softmax_cross_entropy_with_integer_labels(logits, own)
            return lax.psum(jnp.sum(per_row, where=mask), AXIS)

        return jax.grad(loss)(p)

    (state,) = states_of(step, weights(w1=(WIDTH, 8)))
    assert isinstance(state, Known)
    assert state.is_clean
