"""Correct steps: kinds of models."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

import replicax as rx

from .correct import (
    EVEN,
    SHORT,
    Functional,
    correct,
    cross_entropy,
    images,
    mlp,
    mlp_squares,
    mlp_weights,
    squares,
    text,
    training,
    weights,
)

# --- dense and convolutional ---------------------------------------------------------------------


@correct(rows=SHORT)
def linear():
    params = weights(w=(6, 3), b=(3,))
    return training(lambda p, batch: squares(batch.x @ p["w"] + p["b"], batch), params)


@correct(rows=SHORT, replicas=2)
def multilayer_perceptron():
    return training(mlp_squares, mlp_weights())


def convolve(x, kernel, **options):
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    return lax.conv_general_dilated(
        x, kernel, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options
    )


@correct(rows=SHORT)
def convolutions_and_pooling():
    def per_row(p, batch):
        x = jax.nn.relu(convolve(batch.x, p["k1"]))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(convolve(x, p["k2"], rhs_dilation=(2, 2)))
        x = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 3, 3, 1), "VALID") / 9
        return cross_entropy(x.reshape(x.shape[0], -1) @ p["w"], batch.label)

    params = weights(k1=(3, 3, 2, 4), k2=(3, 3, 4, 4), w=(4, 3))
    return training(per_row, params, batch=images)


@correct(rows=SHORT, replicas=2)
def depthwise_and_transposed_convolutions():
    def per_row(p, batch):
        x = convolve(batch.x, p["depthwise"], feature_group_count=2)
        x = jax.nn.silu(convolve(x, p["pointwise"], window_strides=(2, 2)))
        x = lax.conv_transpose(x, p["up"], (2, 2), "SAME")
        return cross_entropy(x.mean((1, 2)), batch.label)

    params = weights(depthwise=(3, 3, 1, 4), pointwise=(1, 1, 4, 4), up=(3, 3, 4, 3))
    return training(per_row, params, batch=images)


# --- normalisation -------------------------------------------------------------------------------


@correct(rows=EVEN, replicas=2)
def batch_norm_of_each_replica():
    """Each replica normalises with its own statistics; the running ones are all-reduced.

    By design not one device: the reference goes through the replicas' shares by hand.
    """

    def normalised(x):
        mean, variance = x.mean(0), x.var(0)
        return (x - mean) * lax.rsqrt(variance + 1e-3), (mean, variance)

    def loss_of(w, batch):
        x, statistics = normalised(batch.x @ w["w1"])
        return squares(x @ w["w2"], batch), statistics

    def updated(state, grads, statistics):
        w, running = state
        w = jax.tree.map(lambda w, g: w - 0.1 * g, w, grads)
        return w, jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, running, statistics)

    def replica_step(state, batch):
        ctx = rx.get_replica_context()

        def loss(w):
            per_row, statistics = loss_of(w, batch)
            return ctx.global_mean(per_row), statistics

        (value, statistics), grads = jax.value_and_grad(loss, has_aux=True)(state[0])
        grads, statistics = ctx.all_reduce("mean", (grads, statistics))
        return updated(state, grads, statistics), value

    def reference(state, batch, num_replicas):
        def loss(w):
            shares = [
                loss_of(w, jax.tree.map(lambda x: jnp.split(x, num_replicas)[i], batch))  # noqa: B023
                for i in range(num_replicas)
            ]
            statistics = jax.tree.map(lambda *s: sum(s) / num_replicas, *[s for _, s in shares])
            return jnp.concatenate([rows for rows, _ in shares]).mean(), statistics

        (value, statistics), grads = jax.value_and_grad(loss, has_aux=True)(state[0])
        return updated(state, grads, statistics), value

    state = (weights(w1=(6, 5), w2=(5, 3)), (jnp.zeros(5), jnp.ones(5)))
    return Functional(state, replica_step, reference=reference)


@correct(rows=SHORT)
def synchronised_batch_norm():
    """Statistics of the global batch, in the loss and through its gradient: one device."""

    def replica_step(state, batch):
        w, running = state
        ctx = rx.get_replica_context()

        def loss(w):
            x = convolve(batch.x, w["k"])
            mean = ctx.global_mean(x.mean((1, 2)))
            variance = ctx.global_mean(((x - mean) ** 2).mean((1, 2)))
            x = jax.nn.relu((x - mean) * lax.rsqrt(variance + 1e-3) * w["scale"] + w["shift"])
            per_row = cross_entropy(x.mean((1, 2)) @ w["w"], batch.label)
            return ctx.global_mean(per_row), (mean, variance)

        (value, statistics), grads = jax.value_and_grad(loss, has_aux=True)(w)
        grads = ctx.all_reduce("mean", grads)
        w = jax.tree.map(lambda w, g: w - 0.1 * g, w, grads)
        running = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, running, statistics)
        return (w, running), value

    w = weights(k=(3, 3, 2, 4), scale=(4,), shift=(4,), w=(4, 3))
    return Functional((w, (jnp.zeros(4), jnp.ones(4))), replica_step, images)


@correct(rows=SHORT, replicas=2)
def layer_norm():
    def per_row(p, batch):
        x = batch.x @ p["w1"]
        x = jax.nn.standardize(x, axis=-1) * p["scale"] + p["shift"]
        return squares(jax.nn.gelu(x) @ p["w2"], batch)

    return training(per_row, weights(w1=(6, 8), scale=(8,), shift=(8,), w2=(8, 3)))


@correct(rows=SHORT)
def group_norm():
    def per_row(p, batch):
        x = convolve(batch.x, p["k"])
        groups = x.reshape(*x.shape[:3], 2, 2)
        groups = jax.nn.standardize(groups, axis=(1, 2, 4), epsilon=1e-3)
        x = jax.nn.relu(groups.reshape(x.shape) * p["scale"])
        return cross_entropy(x.mean((1, 2)) @ p["w"], batch.label)

    return training(per_row, weights(k=(3, 3, 2, 4), scale=(4,), w=(4, 3)), batch=images)


# --- sequences -----------------------------------------------------------------------------------


def next_token_loss(logits, batch):
    losses = cross_entropy(logits[:, :-1], batch.tokens[:, 1:])
    return losses.mean(-1)


@correct(rows=SHORT)
def attention_of_the_library():
    def per_row(p, batch):
        x = p["embedding"][batch.tokens]
        q, k, v = ((x @ p[name]).reshape(*x.shape[:2], 2, 4) for name in ("query", "key", "value"))
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        return next_token_loss(x @ p["out"], batch)

    params = weights(embedding=(7, 8), query=(8, 8), key=(8, 8), value=(8, 8), out=(8, 7))
    return training(per_row, params, batch=text)


@correct(rows=SHORT, replicas=2)
def attention_by_hand():
    def per_row(p, batch):
        x = jnp.take(p["embedding"], batch.tokens, axis=0)
        scores = jnp.einsum("btd,de,bse->bts", x, p["scores"], x)
        causal = jnp.tril(jnp.ones(scores.shape[1:], bool))
        scores = jnp.where(causal, scores, jnp.finfo(scores.dtype).min)
        x = jax.nn.softmax(scores) @ x
        return next_token_loss(x @ p["out"], batch)

    params = weights(embedding=(7, 8), scores=(8, 8), out=(8, 7))
    return training(per_row, params, batch=text)


@correct(rows=SHORT)
def embedding_by_one_hot():
    def per_row(p, batch):
        x = jax.nn.one_hot(batch.tokens, 7) @ p["embedding"]
        return next_token_loss(x @ p["out"], batch)

    return training(per_row, weights(embedding=(7, 8), out=(8, 7)), batch=text)


@correct(rows=SHORT)
def lstm_by_scan():
    def per_row(p, batch):
        x = p["embedding"][batch.tokens]

        def cell(carry, x):
            h, c = carry
            i, f, g, o = jnp.split(x @ p["wx"] + h @ p["wh"] + p["b"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[0], 8))
        _, hidden = lax.scan(cell, (zeros, zeros), x.swapaxes(0, 1))
        return next_token_loss(hidden.swapaxes(0, 1) @ p["out"], batch)

    params = weights(embedding=(7, 6), wx=(6, 32), wh=(8, 32), b=(32,), out=(8, 7))
    return training(per_row, params, batch=text)


@correct(rows=SHORT, replicas=2)
def gru_by_scan_with_lengths():
    def per_row(p, batch):
        x = p["embedding"][batch.tokens]

        def cell(h, inputs):
            x, t = inputs
            z, r = jnp.split(jax.nn.sigmoid(x @ p["wx"] + h @ p["wh"]), 2, axis=-1)
            candidate = jnp.tanh(x @ p["cx"] + (r * h) @ p["ch"])
            new = (1 - z) * h + z * candidate
            return jnp.where((t < batch.length)[:, None], new, h), None

        steps = (x.swapaxes(0, 1), jnp.arange(x.shape[1]))
        h, _ = lax.scan(cell, jnp.zeros((x.shape[0], 4)), steps, reverse=True)
        return cross_entropy(h @ p["out"], batch.length % 3)

    params = weights(embedding=(7, 6), wx=(6, 8), wh=(4, 8), cx=(6, 4), ch=(4, 4), out=(4, 3))
    return training(per_row, params, batch=text)


@correct(rows=SHORT)
def linear_recurrence_by_associative_scan():
    def per_row(p, batch):
        x = p["embedding"][batch.tokens]
        decay = jnp.broadcast_to(jax.nn.sigmoid(p["decay"]), x.shape)

        def combine(left, right):
            return left[0] * right[0], right[0] * left[1] + right[1]

        _, hidden = lax.associative_scan(combine, (decay, x), axis=1)
        return next_token_loss(hidden @ p["out"], batch)

    return training(per_row, weights(embedding=(7, 6), decay=(6,), out=(6, 7)), batch=text)


# --- transformations of functions ----------------------------------------------------------------


@correct(rows=SHORT)
def remat_with_policies():
    policies = (jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.nothing_saveable)

    def per_row(p, batch):
        x = batch.x
        for layer, policy in zip(p["layers"], policies, strict=True):
            block = jax.checkpoint(lambda w, x: x + jnp.sin(x @ w), policy=policy)
            x = block(layer, x)
        return squares(x @ p["out"], batch)

    layers = list(weights(one=(6, 6), two=(6, 6)).values())
    return training(per_row, {"layers": layers, **weights(out=(6, 3))})


@correct(rows=SHORT, replicas=2)
def layers_by_scan_with_remat():
    def per_row(p, batch):
        @functools.partial(jax.checkpoint, prevent_cse=False)
        def layer(x, w):
            return jnp.tanh(x @ w), None

        x, _ = lax.scan(layer, batch.x, p["layers"])
        return squares(x @ p["out"], batch)

    return training(per_row, weights(layers=(4, 6, 6), out=(6, 3)))


@correct(rows=SHORT)
def custom_vjp():
    @jax.custom_vjp
    def rounded(x):
        return jnp.round(x * 4) / 4

    rounded.defvjp(lambda x: (rounded(x), x), lambda x, ct: (ct * (jnp.abs(x) < 1),))

    def per_row(p, batch):
        return squares(rounded(batch.x @ p["w1"]) @ p["w2"], batch)

    return training(per_row, weights(w1=(6, 8), w2=(8, 3)))


@correct(rows=SHORT, replicas=2)
def custom_jvp():
    @jax.custom_jvp
    def stable(x):
        return jnp.log1p(jnp.exp(x))

    @stable.defjvp
    def _(primals, tangents):
        (x,), (tangent,) = primals, tangents
        return stable(x), jax.nn.sigmoid(x) * tangent

    def per_row(p, batch):
        return squares(stable(batch.x @ p["w1"]) @ p["w2"], batch)

    return training(per_row, weights(w1=(6, 8), w2=(8, 3)))


@correct(rows=SHORT)
def stop_gradient_to_a_target_network():
    def per_row(p, batch):
        target = lax.stop_gradient(mlp(p["target"], batch.x))
        return jnp.sum((mlp(p["online"], batch.x) - 0.9 * target) ** 2, -1) + squares(
            batch.x @ p["w"], batch
        )

    params = {"online": mlp_weights(), "target": mlp_weights(), **weights(w=(6, 3))}
    return training(per_row, params)


@correct(rows=SHORT, replicas=2)
def vmap_over_rows_and_map_over_columns():
    def one_row(p, x, y):
        return jnp.sum((jnp.vdot(x, p["w"][:, 0]) - y) ** 2)

    def per_row(p, batch):
        rows = jax.vmap(one_row, in_axes=(None, 0, 0))(p, batch.x, batch.y)
        columns = lax.map(lambda w: jnp.sum((batch.x @ w) ** 2, -1), p["v"])
        return rows + 0.1 * columns.sum(0)

    return training(per_row, weights(w=(6, 1), v=(3, 6, 2)))


# --- operations ----------------------------------------------------------------------------------


@correct(rows=SHORT)
def scatter_segments_sort_and_top_k():
    def per_row(p, batch):
        rows = batch.x.shape[0]
        hidden = batch.x @ p["w"]
        best, where = lax.top_k(hidden, 2)
        filled = jnp.zeros((rows, 5)).at[jnp.arange(rows)[:, None], where].add(best)
        ids = jnp.repeat(jnp.arange(rows), 5)
        sums = jax.ops.segment_sum(jnp.sort(hidden, axis=-1).ravel() ** 2, ids, rows)
        return squares(filled @ p["out"], batch) + 0.1 * sums

    return training(per_row, weights(w=(6, 5), out=(5, 3)))


@correct(rows=SHORT, replicas=2)
def linear_algebra():
    def one_row(p, x, y):
        a = jnp.outer(x[:3], x[:3]) + jnp.diag(jnp.exp(p["d"]))
        lower = jnp.linalg.cholesky(a)
        z = jnp.linalg.solve(a, y) + jax.scipy.linalg.solve_triangular(lower, p["b"], lower=True)
        values, vectors = jnp.linalg.eigh(a)
        singular = jnp.linalg.svd(p["w"] + jnp.outer(x, y), compute_uv=False)
        return jnp.sum(z**2) + jnp.sum((vectors * values).sum(1) ** 2) + jnp.sum(singular)

    def per_row(p, batch):
        return jax.vmap(one_row, in_axes=(None, 0, 0))(p, batch.x, batch.y)

    return training(per_row, weights(d=(3,), b=(3,), w=(6, 3)), optax.sgd(0.01))


@correct(rows=SHORT)
def fourier_filter():
    def per_row(p, batch):
        spectrum = jnp.fft.rfft(batch.x, axis=-1)
        x = jnp.fft.irfft(spectrum * (p["real"] + 1j * p["imaginary"]), n=6, axis=-1)
        return squares(x @ p["out"], batch)

    return training(per_row, weights(real=(4,), imaginary=(4,), out=(6, 3)))


@correct(rows=SHORT, replicas=2)
def interpolation_and_image_resize():
    def per_row(p, batch):
        x = jax.image.resize(batch.x, (batch.x.shape[0], 4, 4, 2), "linear")
        x = jnp.interp(x, jnp.linspace(-2, 2, 5), p["curve"])
        return cross_entropy(x.reshape(x.shape[0], -1) @ p["w"], batch.label)

    return training(per_row, weights(curve=(5,), w=(32, 3)), batch=images)


@correct(rows=SHORT)
def mixture_of_experts():
    def per_row(p, batch):
        chances = jax.nn.softmax(batch.x @ p["router"])
        best, which = lax.top_k(chances, 2)
        gates = jnp.sum(jax.nn.one_hot(which, 4) * best[..., None], axis=1)
        outputs = jnp.einsum("bi,eio->beo", batch.x, p["experts"])
        return squares(jnp.einsum("be,beo->bo", gates, outputs), batch)

    return training(per_row, weights(router=(6, 4), experts=(4, 6, 3)))


# --- structures ----------------------------------------------------------------------------------


class Layer(NamedTuple):
    w: jax.Array
    b: jax.Array


@functools.partial(jax.tree_util.register_dataclass, data_fields=["layers", "out"], meta_fields=[])
@dataclasses.dataclass
class Model:
    layers: list[Layer]
    out: dict[str, jax.Array]


@correct(rows=SHORT)
def named_tuples_and_dataclasses():
    def per_row(model, batch):
        x = batch.x
        for layer in model.layers:
            x = jnp.tanh(x @ layer.w + layer.b)
        return squares(x @ model.out["w"], batch)

    params = weights(w1=(6, 5), b1=(5,), w2=(5, 4), b2=(4,), out=(4, 3))
    layers = [Layer(params["w1"], params["b1"]), Layer(params["w2"], params["b2"])]
    return training(per_row, Model(layers, {"w": params["out"]}), optax.adam(0.01))


@correct(rows=SHORT, replicas=2)
def deep_tree_with_empty_parts():
    def per_row(p, batch):
        x = batch.x @ p["trunk"][0][0]["w"]
        heads = [x @ head["w"] for head in p["heads"]]
        return squares(sum(heads), batch)

    many = list(weights(**{f"w{i}": (4, 3) for i in range(12)}).values())
    params = {
        "trunk": ([weights(w=(6, 4)), None], ()),
        "heads": [{"w": w, "nothing": {}} for w in many],
    }
    return training(per_row, params, optax.sgd(0.01, momentum=0.9))
