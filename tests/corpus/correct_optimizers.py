"""Correct steps: optimizers and what stands around them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import lax

import replicax as rx

from .correct import SHORT, Functional, correct, mlp_squares, mlp_weights, training


def optimizer(name, transformation, **options):
    """Put the training of an MLP with an optimizer on the list."""

    def make():
        return training(mlp_squares, mlp_weights(), transformation())

    make.__name__ = f"optax_{name}"
    correct(rows=SHORT, **options)(make)


optimizer("sgd", lambda: optax.sgd(0.1), replicas=2)
optimizer("nesterov", lambda: optax.sgd(0.05, momentum=0.9, nesterov=True))
optimizer("adam", lambda: optax.adam(0.01))
optimizer("adamw", lambda: optax.adamw(0.01, weight_decay=0.1), replicas=2)
optimizer("amsgrad", lambda: optax.amsgrad(0.01))
optimizer("lion", lambda: optax.lion(0.01), replicas=2)
optimizer("lamb", lambda: optax.lamb(0.01))
optimizer("rmsprop", lambda: optax.rmsprop(0.01, momentum=0.9), replicas=2)
optimizer("adagrad", lambda: optax.adagrad(0.1))
optimizer("adafactor", lambda: optax.adafactor(0.01, min_dim_size_to_factor=2))
optimizer(
    "clipping_and_schedule",
    lambda: optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.sgd(optax.warmup_cosine_decay_schedule(0.01, 0.1, 2, 10)),
    ),
)
optimizer("multi_steps", lambda: optax.MultiSteps(optax.adam(0.01), 2).gradient_transformation())
optimizer("apply_if_finite", lambda: optax.apply_if_finite(optax.adam(0.01), 2), replicas=2)
optimizer("ema_of_updates", lambda: optax.chain(optax.ema(0.9), optax.scale(-0.1)), replicas=2)
optimizer(
    "masked",
    lambda: optax.chain(
        optax.masked(
            optax.add_decayed_weights(0.1), {"w1": True, "b1": False, "w2": True, "b2": False}
        ),
        optax.sgd(0.1),
    ),
)
optimizer(
    "multi_transform",
    lambda: optax.multi_transform(
        {"fast": optax.adam(0.1), "slow": optax.sgd(0.01), "none": optax.set_to_zero()},
        {"w1": "fast", "b1": "none", "w2": "slow", "b2": "slow"},
    ),
    replicas=2,
)
optimizer(
    "injected_hyperparameters",
    lambda: optax.inject_hyperparams(optax.sgd)(optax.exponential_decay(0.1, 1, 0.9)),
)
optimizer("adan", lambda: optax.adan(0.01), replicas=2)


@correct(rows=SHORT)
def moving_average_of_weights():
    tx = optax.adam(0.01)

    def replica_step(state, batch):
        params, average, slots = state
        ctx = rx.get_replica_context()
        grads = jax.grad(lambda p: ctx.global_mean(mlp_squares(p, batch)))(params)
        updates, slots = tx.update(ctx.all_reduce("mean", grads), slots, params)
        params = optax.apply_updates(params, updates)
        average = optax.incremental_update(params, average, 0.1)
        return (params, average, slots), optax.tree.norm(average)

    params = mlp_weights()
    return Functional((params, params, tx.init(params)), replica_step)


@correct(rows=SHORT)
def loss_scaling_with_a_finite_check():
    """The scale is a power of two; the second step overflows on one replica alone."""

    def replica_step(state, batch):
        params, scale, count = state
        ctx = rx.get_replica_context()

        def loss(p):
            per_row = mlp_squares(p, batch)
            broken = (count == 1) & (batch.x[:, 0] == batch.x[:, 0].max())
            return scale * ctx.global_mean(jnp.where(broken, jnp.inf * per_row, per_row))

        grads = jax.grad(loss)(params)
        grads = jax.tree.map(lambda g: g / scale, ctx.all_reduce("mean", grads))
        finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        params = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), params, grads)
        scale = jnp.where(finite, scale * 2, scale / 2)
        return (params, scale, count + 1), finite

    return Functional((mlp_weights(), jnp.float32(1024), jnp.int32(0)), replica_step)


@correct(rows=SHORT)
def skipped_update_by_cond():
    """A collective stands in a branch; its condition was all-reduced, so all take it or none."""
    tx = optax.adam(0.01)

    def replica_step(state, batch):
        params, slots, count = state
        ctx = rx.get_replica_context()
        loss, grads = jax.value_and_grad(lambda p: ctx.global_mean(mlp_squares(p, batch)))(params)
        count = count + ctx.all_reduce(rx.ReduceOp.MAX, jnp.int32(1))

        def update():
            updates, new = tx.update(ctx.all_reduce("mean", grads), slots, params)
            return optax.apply_updates(params, updates), new

        params, slots = lax.cond((count % 2 == 1) & (loss > 0), update, lambda: (params, slots))
        return (params, slots, count), loss

    params = mlp_weights()
    return Functional((params, tx.init(params), jnp.int32(0)), replica_step)


@correct(rows=SHORT)
def gradient_accumulation_with_one_all_reduce():
    """Micro-batches by scan; sums and row counts travel once, at the end."""

    def replica_step(params, batch):
        ctx = rx.get_replica_context()
        mask = ctx.row_mask
        rows = jnp.ones(batch.x.shape[0]) if mask is None else mask.astype(jnp.float32)

        def micro(total, one):
            row, weight = one
            row = jax.tree.map(lambda leaf: leaf[None], row)
            value, grads = jax.value_and_grad(lambda p: mlp_squares(p, row)[0] * weight)(params)
            return jax.tree.map(jnp.add, total, (value, grads, weight)), None

        zero = (0.0, jax.tree.map(jnp.zeros_like, params), 0.0)
        total, _ = lax.scan(micro, zero, (batch, rows))
        loss, grads, count = ctx.all_reduce("sum", total)
        return jax.tree.map(lambda p, g: p - 0.1 * g / count, params, grads), loss / count

    return Functional(mlp_weights(), replica_step)


@correct(rows=SHORT)
def sharded_optimizer_state():
    """Gradients are reduce-scattered, each replica updates its part, the parts are gathered."""

    def start(strategy):
        params = jnp.linspace(-1, 1, 24)
        if strategy is None:
            return params, jnp.zeros(24)
        part = 24 // strategy.num_replicas_in_sync
        return params, strategy.distribute_values_from_function(lambda _: jnp.zeros(part))

    def replica_step(state, batch):
        flat, momentum = state
        ctx = rx.get_replica_context()
        part = momentum.shape[0]

        def loss(flat):
            p = {"w": flat[:18].reshape(6, 3), "b": flat[18:].reshape(2, 3)}
            return ctx.global_mean(jnp.sum((batch.x @ p["w"] + p["b"].sum(0) - batch.y) ** 2, -1))

        value, gradient = jax.value_and_grad(loss)(flat)
        momentum = 0.9 * momentum + ctx.reduce_scatter("mean", gradient)
        own = lax.dynamic_slice_in_dim(flat, ctx.replica_id_in_sync_group * part, part)
        return (ctx.all_gather(own - 0.05 * momentum, axis=0), momentum), value

    return Functional(start, replica_step)


@correct(rows=SHORT, replicas=2)
def two_players_with_two_optimizers():
    """Generator and discriminator in one step, as in adversarial training."""
    tx = optax.adam(0.01)

    def replica_step(state, batch):
        g, d, g_slots, d_slots = state
        ctx = rx.get_replica_context()

        def score(d, x):
            return jnp.tanh(x @ d["w"])[:, 0]

        def d_loss(d):
            fake = batch.x @ g["w"]
            real = jax.nn.softplus(-score(d, batch.y))
            return ctx.global_mean(real + jax.nn.softplus(score(d, fake)))

        def g_loss(g):
            return ctx.global_mean(jax.nn.softplus(-score(d, batch.x @ g["w"])))

        d_value, d_grads = jax.value_and_grad(d_loss)(d)
        g_value, g_grads = jax.value_and_grad(g_loss)(g)
        d_grads, g_grads = ctx.all_reduce("mean", (d_grads, g_grads))
        d_updates, d_slots = tx.update(d_grads, d_slots)
        g_updates, g_slots = tx.update(g_grads, g_slots)
        new = (optax.apply_updates(g, g_updates), optax.apply_updates(d, d_updates))
        return (*new, g_slots, d_slots), {"d": d_value, "g": g_value}

    g, d = {"w": jnp.full((6, 3), 0.1)}, {"w": jnp.full((3, 1), 0.2)}
    return Functional((g, d, tx.init(g), tx.init(d)), replica_step)
