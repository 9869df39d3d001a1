"""Correct steps in functional style: solvers, control flow, keys, metrics, second derivatives."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import jax.scipy.sparse.linalg
from jax import lax

import replicax as rx

from .correct import (
    EVEN,
    Functional,
    correct,
    cross_entropy,
    mlp,
    mlp_squares,
    mlp_weights,
    squares,
    text,
    weights,
)


def descended(params, grads, rate=0.1):
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


# --- loops and branches --------------------------------------------------------------------------


@correct()
def power_iteration_by_while_loop():
    """Each round holds a collective; all replicas stop in the same round."""

    def replica_step(vector, batch):
        ctx = rx.get_replica_context()

        def unfinished(carry):
            rounds, _, change = carry
            return (rounds < 6) & (change > 1e-12)

        def body(carry):
            rounds, v, _ = carry
            new = ctx.global_sum(batch.x * (batch.x @ v)[:, None])
            new = new / jnp.linalg.norm(new)
            return rounds + 1, new, jnp.max(jnp.abs(new - v))

        rounds, vector, _ = lax.while_loop(unfinished, body, (0, vector, jnp.float32(jnp.inf)))
        return vector, rounds

    return Functional(jnp.linspace(0.1, 1, 6), replica_step)


@correct(replicas=2)
def inner_steps_by_fori_loop():
    """Both a fixed number of rounds (a scan) and one that the state gives (a while)."""

    def replica_step(state, batch):
        params, count = state
        ctx = rx.get_replica_context()

        def body(_, params):
            grads = jax.grad(lambda p: ctx.global_mean(mlp_squares(p, batch)))(params)
            return descended(params, ctx.all_reduce("mean", grads), 0.03)

        params = lax.fori_loop(0, 2, body, params)
        params = lax.fori_loop(0, count, body, params)
        return (params, count + 1), None

    return Functional((mlp_weights(), jnp.int32(1)), replica_step)


@correct()
def switch_on_a_mirrored_number():
    def replica_step(state, batch):
        params, count = state
        ctx = rx.get_replica_context()
        grads = jax.grad(lambda p: ctx.global_mean(mlp_squares(p, batch)))(params)
        branches = [
            lambda g: ctx.all_reduce("mean", g),
            lambda g: jax.tree.map(jnp.sign, ctx.all_reduce("mean", g)),
            lambda g: jax.tree.map(jnp.zeros_like, g),
        ]
        grads = lax.switch(count % 3, branches, grads)
        return (descended(params, grads, 0.05), count + 1), None

    return Functional((mlp_weights(), jnp.int32(0)), replica_step)


@correct()
def branch_on_the_own_rows_without_collectives():
    """A condition may vary as long as no collective stands under it."""

    def replica_step(params, batch):
        ctx = rx.get_replica_context()

        def one_row(x, y):
            error = jnp.sum((mlp(params, x) - y) ** 2)
            return lax.cond(error > 1, lambda: 2 * jnp.sqrt(error) - 1, lambda: error)

        per_row = lax.map(lambda row: one_row(*row), (batch.x, batch.y))
        where_most = lax.while_loop(lambda n: n < batch.label[0], lambda n: n + 1, 0)
        del where_most  # It varies, and goes nowhere.
        mean = ctx.global_mean(per_row)
        return {**params, "b2": params["b2"] - 0.1 * mean}, mean

    return Functional(mlp_weights(), replica_step)


@correct(rows=EVEN, replicas=2)
def several_updates_in_one_program():
    """A scan over micro-batches of the replica's rows, with an all-reduce in each round."""

    def replica_step(params, batch):
        ctx = rx.get_replica_context()

        def update(params, micro):
            loss, grads = jax.value_and_grad(lambda p: jnp.mean(mlp_squares(p, micro)))(params)
            grads, loss = ctx.all_reduce("mean", (grads, loss))
            return descended(params, grads), loss

        micro = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), batch)
        return lax.scan(update, params, micro)

    def reference(params, batch, num_replicas):
        # Micro-batch m of the global batch is micro-batch m of every replica.
        losses = []
        for m in range(2):
            shares = jax.tree.map(
                lambda leaf: leaf.reshape(num_replicas, 2, -1, *leaf.shape[1:])[:, m],  # noqa: B023
                batch,
            )
            rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), shares)
            loss, grads = jax.value_and_grad(lambda p: jnp.mean(mlp_squares(p, rows)))(params)  # noqa: B023
            params, losses = descended(params, grads), [*losses, loss]
        return params, jnp.stack(losses)

    return Functional(mlp_weights(), replica_step, reference=reference)


@correct()
def collectives_inside_jit():
    def replica_step(params, batch):
        ctx = rx.get_replica_context()

        @jax.jit
        def reduced(params, batch):
            grads = jax.grad(lambda p: ctx.global_mean(mlp_squares(p, batch)))(params)
            return ctx.all_reduce("mean", grads)

        return descended(params, reduced(params, batch)), None

    return Functional(mlp_weights(), replica_step)


# --- derivatives ---------------------------------------------------------------------------------


@correct()
def clipped_gradients_of_single_rows():
    """The gradient of every row by vmap, clipped to norm 1, then their mean."""

    def replica_step(params, batch):
        ctx = rx.get_replica_context()

        def loss(p, row):
            return mlp_squares(p, jax.tree.map(lambda leaf: leaf[None], row))[0]

        grads = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, batch)
        norms = jnp.sqrt(sum(jnp.sum(g**2, range(1, g.ndim)) for g in jax.tree.leaves(grads)))
        factors = 1 / jnp.maximum(norms, 1)
        clipped = jax.tree.map(lambda g: jax.vmap(jnp.multiply)(g, factors), grads)
        grads = jax.tree.map(ctx.global_mean, clipped)
        return descended(params, grads), norms

    return Functional(mlp_weights(), replica_step)


@correct(replicas=2)
def gauss_newton_by_jacobians():
    def replica_step(flat, batch):
        ctx = rx.get_replica_context()

        def residuals(flat):
            return jnp.tanh(batch.x @ flat.reshape(6, 3)) - batch.y

        jacobian, now = jax.jacfwd(residuals)(flat), residuals(flat)  # [B, 3, 18] and [B, 3]
        reverse = jax.jacrev(residuals)(flat)
        normal = ctx.global_mean(jnp.einsum("bop,boq->bpq", jacobian, reverse))
        right = ctx.global_mean(jnp.einsum("bop,bo->bp", jacobian, now))
        return flat - jnp.linalg.solve(normal + jnp.eye(18), right), ctx.global_mean(now**2)

    return Functional(weights(w=(18,))["w"], replica_step)


@correct()
def newton_by_conjugate_gradients():
    """Hessian-vector products with an all-reduce, inside the loop of the solver."""

    def replica_step(params, batch):
        ctx = rx.get_replica_context()

        def loss(p):
            return ctx.global_mean(squares(batch.x @ p["w"] + p["b"], batch))

        gradient = jax.grad(loss)

        def product(v):
            curved = ctx.all_reduce("mean", jax.jvp(gradient, (params,), (v,))[1])
            return jax.tree.map(lambda h, v: h + 0.5 * v, curved, v)

        grads = ctx.all_reduce("mean", gradient(params))
        direction, _ = jax.scipy.sparse.linalg.cg(product, grads, maxiter=3)
        return descended(params, direction, 1.0), loss(params)

    return Functional(weights(w=(6, 3), b=(3,)), replica_step)


@correct(replicas=2)
def hessian_of_a_small_model():
    def replica_step(w, batch):
        ctx = rx.get_replica_context()

        def loss(w):
            return ctx.global_mean(jax.nn.softplus(-batch.y[:, 0] * (batch.x @ w)))

        grads, hessian = ctx.all_reduce("mean", (jax.grad(loss)(w), jax.hessian(loss)(w)))
        factor = jax.scipy.linalg.cho_factor(hessian + 0.1 * jnp.eye(6))
        return w - jax.scipy.linalg.cho_solve(factor, grads), jnp.linalg.eigvalsh(hessian)

    return Functional(weights(w=(6,))["w"], replica_step)


@correct()
def gradient_penalty():
    """The derivative of a derivative with respect to the input."""

    def replica_step(params, batch):
        ctx = rx.get_replica_context()

        def per_row(p):
            slopes = jax.vmap(jax.grad(lambda x: mlp(p, x).sum()))(batch.x)
            return mlp_squares(p, batch) + 0.1 * (jnp.sum(slopes**2, -1) - 1) ** 2

        loss, grads = jax.value_and_grad(lambda p: ctx.global_mean(per_row(p)))(params)
        return descended(params, ctx.all_reduce("mean", grads), 0.05), loss

    return Functional(mlp_weights(), replica_step)


@correct(replicas=2)
def derivative_through_a_solver():
    """An implicit layer: `custom_root` inside the loss."""

    def replica_step(w, batch):
        ctx = rx.get_replica_context()

        def layer(w, x):
            def equation(z):
                return z + 0.3 * jnp.tanh(w @ z) - x

            def solve(f, start):
                return lax.fori_loop(0, 25, lambda _, z: z - f(z), start)

            return lax.custom_root(
                equation,
                jnp.zeros_like(x),
                solve,
                lambda linear, y: jnp.linalg.solve(jax.jacobian(linear)(y), y),
            )

        def loss(w):
            z = jax.vmap(layer, in_axes=(None, 0))(w, batch.y)
            return ctx.global_mean(jnp.sum((z - batch.x[:, :3]) ** 2, -1))

        value, grads = jax.value_and_grad(loss)(w)
        return descended(w, ctx.all_reduce("mean", grads)), value

    return Functional(weights(w=(3, 3))["w"], replica_step)


# --- random numbers ------------------------------------------------------------------------------


@correct()
def dropout_with_a_mirrored_key():
    """One mask of features for all rows of all replicas; the key is state."""

    def replica_step(state, batch):
        params, key = state
        ctx = rx.get_replica_context()
        key, now = jax.random.split(key)
        keep = jax.random.bernoulli(now, 0.5, (8,))

        def per_row(p):
            hidden = jnp.where(keep, jnp.tanh(batch.x @ p["w1"] + p["b1"]) * 2, 0)
            return squares(hidden @ p["w2"] + p["b2"], batch)

        grads = jax.grad(lambda p: ctx.global_mean(per_row(p)))(params)
        return (descended(params, ctx.all_reduce("mean", grads)), key), keep

    return Functional((mlp_weights(), jax.random.key(3)), replica_step)


@correct()
def dropout_with_a_key_of_each_replica():
    """Not one device by design: the reference draws each replica's mask by hand."""

    def loss_of(p, batch, key):
        hidden = jnp.tanh(batch.x @ p["w1"] + p["b1"])
        keep = jax.random.bernoulli(key, 0.5, (2, 8))[: hidden.shape[0]]
        return squares(jnp.where(keep, hidden * 2, 0) @ p["w2"] + p["b2"], batch)

    def replica_step(state, batch):
        params, key = state
        ctx = rx.get_replica_context()
        own = jax.random.fold_in(key, ctx.replica_id_in_sync_group)
        loss, grads = jax.value_and_grad(lambda p: ctx.global_mean(loss_of(p, batch, own)))(params)
        return (descended(params, ctx.all_reduce("mean", grads)), jax.random.split(key)[0]), loss

    def reference(state, batch, num_replicas):
        params, key = state
        share = -(-batch.x.shape[0] // num_replicas)

        def loss(p):
            rows = []
            for i in range(num_replicas):
                own = jax.tree.map(lambda x: x[i * share : (i + 1) * share], batch)  # noqa: B023
                rows.append(loss_of(p, own, jax.random.fold_in(key, i)))
            return jnp.concatenate(rows).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return (descended(params, grads), jax.random.split(key)[0]), value

    return Functional((mlp_weights(), jax.random.key(3)), replica_step, reference=reference)


@correct(replicas=2)
def noise_keyed_by_row():
    """Each row has a key of its own, so it gets the noise of one device wherever it lies."""

    def replica_step(state, batch):
        params, key = state
        ctx = rx.get_replica_context()
        keys = jax.vmap(lambda x: jax.random.fold_in(key, x))(
            jax.lax.bitcast_convert_type(batch.x[:, 0], jnp.uint32)
        )
        noise = jax.vmap(lambda key: jax.random.normal(key, (6,)))(keys)
        noisy = batch._replace(x=batch.x + 0.1 * noise)
        grads = jax.grad(lambda p: ctx.global_mean(mlp_squares(p, noisy)))(params)
        key = jax.random.split(key)[0]
        return (descended(params, ctx.all_reduce("mean", grads)), key), noise

    return Functional((mlp_weights(), jax.random.key(0)), replica_step)


# --- metrics -------------------------------------------------------------------------------------


class Metrics(NamedTuple):
    correct: jax.Array  # i32[]
    among_best_two: jax.Array  # i32[]
    confusion: jax.Array  # i32[3, 3]
    rows: jax.Array  # i32[]


@correct()
def accuracy_top_k_and_confusion_matrix():
    params = weights(w=(6, 3))

    def replica_step(metrics, batch):
        ctx = rx.get_replica_context()
        logits = batch.x @ params["w"]
        guess = logits.argmax(-1)
        best = lax.top_k(logits, 2)[1]
        cells = jax.nn.one_hot(batch.label * 3 + guess, 9, dtype=jnp.int32)
        found = Metrics(
            ctx.global_sum(guess == batch.label),
            ctx.global_sum((best == batch.label[:, None]).any(-1)),
            ctx.global_sum(cells).reshape(3, 3),
            ctx.global_sum(jnp.ones_like(guess)),
        )
        metrics = jax.tree.map(jnp.add, metrics, found)
        return metrics, (guess, metrics.correct / metrics.rows)

    zero = jnp.int32(0)
    return Functional(Metrics(zero, zero, jnp.zeros((3, 3), jnp.int32), zero), replica_step)


@correct(replicas=2)
def area_under_the_curve_by_histograms():
    params = weights(w=(6,))

    def replica_step(histograms, batch):
        ctx = rx.get_replica_context()
        chance = jax.nn.sigmoid(batch.x @ params["w"])
        bins = jnp.digitize(chance, jnp.linspace(0.05, 0.95, 19))
        hits = jax.nn.one_hot(bins, 20) * (batch.label == 0)[:, None]
        misses = jax.nn.one_hot(bins, 20) * (batch.label != 0)[:, None]
        histograms = histograms + ctx.global_sum(jnp.stack([hits, misses], axis=1))
        positive, negative = histograms[:, ::-1].cumsum(-1)
        return histograms, jnp.trapezoid(positive, negative) / (positive[-1] * negative[-1])

    return Functional(jnp.zeros((2, 20)), replica_step)


@correct()
def perplexity_by_token_counts():
    """The weight of a row is its number of tokens, so sums and counts are reduced apart."""

    def replica_step(state, batch):
        params, total, count = state
        ctx = rx.get_replica_context()
        real = jnp.arange(4) < (batch.length - 1)[:, None]
        tokens = ctx.global_sum(real.sum(-1))

        def loss(p):
            logits = p["embedding"][batch.tokens[:, :-1]] @ p["out"]
            losses = jnp.where(real, cross_entropy(logits, batch.tokens[:, 1:]), 0)
            nats = ctx.global_sum(losses.sum(-1))
            return nats / tokens, nats

        grads, nats = jax.grad(loss, has_aux=True)(params)
        params = descended(params, ctx.all_reduce("mean", grads))
        total, count = total + nats, count + tokens
        return (params, total, count), jnp.exp(total / count)

    state = (weights(embedding=(7, 4), out=(4, 7)), jnp.float32(0), jnp.int32(0))
    return Functional(state, replica_step, text)


@correct()
def evaluation_by_row():
    """Results of rows need no mask: their padding is cut off."""
    params = mlp_weights()

    def replica_step(state, batch):
        return state, {"logits": mlp(params, batch.x), "guess": mlp(params, batch.x).argmax(-1)}

    return Functional({}, replica_step)


# --- statistics and other collectives ------------------------------------------------------------


@correct()
def contrastive_loss_over_all_rows():
    """Each row is told apart from the rows of all replicas, whose embeddings are gathered."""

    def replica_step(params, batch):
        ctx = rx.get_replica_context()
        rows = batch.x.shape[0]
        mask = ctx.row_mask
        real = jnp.ones(rows, bool) if mask is None else mask

        def loss(p):
            left, right = jnp.tanh(batch.x @ p["left"]), jnp.tanh(batch.y @ p["right"])
            others, others_real = ctx.all_gather((right, real), axis=0)
            logits = jnp.where(others_real, left @ others.T, -1e9)
            own = ctx.replica_id_in_sync_group * rows + jnp.arange(rows)
            return ctx.global_mean(cross_entropy(logits, own))

        value, grads = jax.value_and_grad(loss)(params)
        return descended(params, ctx.all_reduce("mean", grads)), value

    return Functional(weights(left=(6, 4), right=(3, 4)), replica_step)


@correct()
def running_range_by_max_and_min():
    def replica_step(state, batch):
        low, high = state
        ctx = rx.get_replica_context()
        mask = ctx.row_mask
        real = jnp.ones(batch.x.shape[0], bool) if mask is None else mask
        lowest = jnp.min(batch.x, 0, where=real[:, None], initial=jnp.inf)
        highest = jnp.max(batch.x, 0, where=real[:, None], initial=-jnp.inf)
        low = jnp.minimum(low, ctx.all_reduce(rx.ReduceOp.MIN, lowest))
        high = jnp.maximum(high, ctx.all_reduce(rx.ReduceOp.MAX, highest))
        return (low, high), (batch.x - low) / (high - low)

    return Functional((jnp.full(6, jnp.inf), jnp.full(6, -jnp.inf)), replica_step)


@correct(replicas=2)
def value_of_the_first_replica():
    """Broadcast: the first row of the global batch, as one device sees it."""

    def replica_step(center, batch):
        ctx = rx.get_replica_context()
        first = ctx.broadcast(batch.x[0], source=0)
        center = 0.5 * center + 0.5 * first
        return center, ctx.global_mean(jnp.abs(batch.x - center))

    return Functional(jnp.zeros(6), replica_step)


@correct()
def clusters_and_principal_axes():
    def replica_step(state, batch):
        centers, axes = state
        ctx = rx.get_replica_context()
        nearest = jnp.argmin(((batch.x[:, None] - centers) ** 2).sum(-1), axis=1)
        members = jax.nn.one_hot(nearest, 3)
        sums = ctx.global_sum(members[:, :, None] * batch.x[:, None, :])
        counts = ctx.global_sum(members)[:, None]
        centers = jnp.where(counts > 0, sums / jnp.maximum(counts, 1), centers)
        mean = ctx.global_mean(batch.x)
        moved = batch.x - mean
        covariance = ctx.global_mean(moved[:, :, None] * moved[:, None, :])
        values, vectors = jnp.linalg.eigh(covariance)
        axes = 0.9 * axes + 0.1 * (vectors * values) @ vectors.T
        return (centers, axes), nearest

    centers = weights(c=(3, 6))["c"]
    return Functional((centers, jnp.eye(6)), replica_step)


@correct(replicas=2)
def policy_gradient_with_normalised_rewards():
    def replica_step(params, batch):
        ctx = rx.get_replica_context()
        reward = batch.y.sum(-1)
        mean = ctx.global_mean(reward)
        spread = jnp.sqrt(ctx.global_mean((reward - mean) ** 2)) + 1e-6
        advantage = (reward - mean) / spread

        def loss(p):
            return ctx.global_mean(advantage * cross_entropy(mlp(p, batch.x), batch.label))

        value, grads = jax.value_and_grad(loss)(params)
        return descended(params, ctx.all_reduce("mean", grads)), value

    return Functional(mlp_weights(), replica_step)


@correct()
def integers_counters_and_missing_values():
    """Missing values are told from rows that pad; a step without any finite loss is left out."""

    def replica_step(state, batch):
        ctx = rx.get_replica_context()
        x = jnp.where(batch.x > 1.5, jnp.nan, batch.x)
        missing = ctx.global_sum(jnp.isnan(x).sum(-1))
        x = jnp.nan_to_num(x)

        def loss(w):
            return ctx.global_mean(squares(x @ w, batch))

        value, grads = jax.value_and_grad(loss)(state["w"])
        ok = jnp.isfinite(value)
        w = jnp.where(ok, descended(state["w"], ctx.all_reduce("mean", grads)), state["w"])
        new = {
            "w": w,
            "step": state["step"] + 1,
            "missing": state["missing"] + missing,
            "bits": state["bits"] ^ missing.astype(jnp.uint8),
            "seen": state["seen"] | (ctx.global_sum(x > 1) > 0),
        }
        return new, value

    state = {
        "w": weights(w=(6, 3))["w"],
        "step": jnp.int32(0),
        "missing": jnp.int32(0),
        "bits": jnp.uint8(0),
        "seen": jnp.zeros(6, bool),
    }
    return Functional(state, replica_step)


@correct(replicas=2)
def host_callbacks_that_are_functions():
    """`pure_callback` is a function of its arguments; `jax.debug` brings nothing back."""

    def replica_step(w, batch):
        ctx = rx.get_replica_context()
        loss, grads = jax.value_and_grad(lambda w: ctx.global_mean(squares(batch.x @ w, batch)))(w)
        jax.debug.callback(lambda _: None, loss)
        grads = ctx.all_reduce("mean", grads)
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        rate = jax.pure_callback(lambda norm: 0.1 / (1 + norm), shape, jnp.linalg.norm(grads))
        return descended(w, grads, rate), loss

    return Functional(weights(w=(6, 3))["w"], replica_step)
