"""Correct steps on variables. Their reference is the same code on one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import lax

import replicax as rx

from .correct import EVEN, InPlace, correct, mlp_squares, mlp_weights, squares, weights


def variables_of(tree):
    """One variable a leaf."""
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    return structure.unflatten(
        [rx.Variable(leaf, name=jax.tree_util.keystr(path)) for path, leaf in with_paths]
    )


@correct()
def linear_in_place():
    def make(strategy):
        w = rx.Variable(weights(w=(6, 3))["w"], name="w")
        count = rx.Variable(0, name="count", trainable=False)

        def replica_step(batch):
            ctx = rx.get_replica_context()
            loss, grad = jax.value_and_grad(lambda w: ctx.global_mean(squares(batch.x @ w, batch)))(
                w.value
            )
            w.assign_sub(0.1 * ctx.all_reduce("mean", grad))
            count.assign_add(1)
            return loss

        def step(batch):
            return strategy.reduce("mean", strategy.run(replica_step, args=(batch,)), axis=None)

        return step, [w, count]

    return InPlace(make)


@correct(replicas=2)
def adam_on_variables():
    tx = optax.adam(0.01)

    def make(strategy):
        params = variables_of(mlp_weights())
        slots = variables_of(tx.init(mlp_weights()))

        def replica_step(batch):
            ctx = rx.get_replica_context()
            loss, grads = rx.value_and_grad(
                lambda: ctx.global_mean(
                    mlp_squares({k: v.value for k, v in params.items()}, batch)
                ),
                params,
            )()
            now = jax.tree.map(lambda v: v.value, slots)
            updates, new = tx.update(ctx.all_reduce("mean", grads), now)
            jax.tree.map(lambda v, x: v.assign(x), slots, new)
            jax.tree.map(lambda v, u: v.assign_add(u), params, updates)
            return loss

        return lambda batch: strategy.run(replica_step, args=(batch,)), jax.tree.leaves(
            (params, slots)
        )

    return InPlace(make)


@correct()
def batch_norm_that_writes_in_the_loss():
    """`rx.value_and_grad` carries the writes of the loss function out."""

    def make(strategy):
        w = [rx.Variable(x) for x in weights(w1=(6, 5), w2=(5, 3)).values()]
        mean = rx.Variable(jnp.zeros(5), trainable=False)

        def replica_step(batch):
            ctx = rx.get_replica_context()

            def loss():
                x = batch.x @ w[0].value
                now = ctx.global_mean(x)
                mean.assign(0.9 * mean.value + 0.1 * lax.stop_gradient(now))
                return ctx.global_mean(squares(jnp.tanh(x - now) @ w[1].value, batch))

            value, grads = rx.value_and_grad(loss, w)()
            for variable, grad in zip(w, ctx.all_reduce("mean", grads), strict=True):
                variable.assign_sub(0.1 * grad)
            return value

        return lambda batch: strategy.run(replica_step, args=(batch,)), [*w, mean]

    return InPlace(make)


@correct()
def aggregations():
    """Each variable combines the replicas' values itself."""

    def make(strategy):
        total = rx.Variable(jnp.zeros(6), aggregation="sum")
        mean = rx.Variable(jnp.zeros(()), aggregation="mean")
        first = rx.Variable(jnp.zeros(6), aggregation="only_first_replica")
        rows = rx.Variable(0, aggregation=rx.VariableAggregation.SUM)

        def replica_step(batch):
            ctx = rx.get_replica_context()
            mask = ctx.row_mask
            real = jnp.ones(batch.x.shape[0], bool) if mask is None else mask
            total.assign_add(jnp.sum(batch.x, 0, where=real[:, None]))
            mean.assign(ctx.num_replicas_in_sync * jnp.sum(batch.label, where=real))
            first.assign(batch.x[0])
            rows.assign_add(real.sum())

        return lambda batch: strategy.run(replica_step, args=(batch,)), [total, mean, first, rows]

    return InPlace(make)


@correct()
def gradients_in_a_merge_call():
    def make(strategy):
        w = rx.Variable(weights(w=(6, 3))["w"], name="w")

        def update(strategy, grad, *, rate):
            w.assign_sub(rate * strategy.reduce("mean", grad, axis=None))
            return jnp.linalg.norm(w.value)

        def replica_step(batch):
            ctx = rx.get_replica_context()
            grad = jax.grad(lambda w: ctx.global_mean(squares(batch.x @ w, batch)))(w.value)
            return ctx.merge_call(update, args=(grad,), kwargs={"rate": 0.1})

        return lambda batch: strategy.run(replica_step, args=(batch,)), [w]

    return InPlace(make)


@correct(replicas=2)
def two_runs_in_one_step():
    """The second run reads what the first wrote, and gets its varying result."""

    def make(strategy):
        w = rx.Variable(weights(w=(6, 3))["w"], name="w")

        def forwards(batch):
            return batch.x @ w.value - batch.y

        def backwards(batch, residuals):
            ctx = rx.get_replica_context()
            grad = ctx.global_mean(batch.x[:, :, None] * residuals[:, None, :])
            w.assign_sub(0.1 * grad)
            return ctx.global_mean(jnp.sum(residuals**2, -1))

        def step(batch):
            residuals = strategy.run(forwards, args=(batch,))
            loss = strategy.run(backwards, args=(batch, residuals))
            after = strategy.run(forwards, args=(batch,))
            return loss, residuals, after

        return step, [w]

    return InPlace(make)


@correct()
def reduce_and_gather_across_replicas():
    """Work in cross-replica context, between runs and after them."""

    def make(strategy):
        w = rx.Variable(weights(w=(6,))["w"], name="w")
        best = rx.Variable(-jnp.inf, name="best")

        def scores(batch):
            return {"score": batch.x @ w.value, "label": batch.label}

        def step(batch):
            found = strategy.run(scores, args=(batch,))
            mean = strategy.reduce("mean", found["score"], axis=0)
            total = strategy.reduce("sum", found["label"], axis=0)
            highest = strategy.reduce(rx.ReduceOp.MAX, found["score"], axis=0)
            w.assign_add(0.01 * jnp.full(6, mean))
            best.assign(jnp.maximum(best.value, highest))
            return mean, total, found

        return step, [w, best]

    return InPlace(make)


@correct(rows=EVEN)
def gather_inside_the_step():
    def make(strategy):
        memory = rx.Variable(jnp.zeros((8, 6)), name="memory")

        def replica_step(batch):
            return batch.x * 2

        def step(batch):
            rows = strategy.gather(strategy.run(replica_step, args=(batch,)), axis=0)
            memory.assign(0.5 * memory.value + rows)
            return jnp.sort(rows, axis=0)

        return step, [memory]

    return InPlace(make)


@correct(replicas=2)
def variables_read_in_scan_and_cond():
    """Variables may be read anywhere; what a loop brings back is assigned after it."""

    def make(strategy):
        w = rx.Variable(weights(w=(6, 6))["w"], name="w")
        flag = rx.Variable(True, name="flag", trainable=False)

        def replica_step(batch):
            ctx = rx.get_replica_context()

            def loss(value):
                def layer(x, _):
                    return jnp.tanh(x @ value + 0.1 * w.value.mean()), None

                x, _ = lax.scan(layer, batch.x, None, length=2)
                return ctx.global_mean(squares(x[:, :3], batch))

            grad = ctx.all_reduce("mean", jax.grad(loss)(w.value))
            w.assign(lax.cond(flag.value, lambda: w.value - 0.1 * grad, lambda: w.value))
            flag.assign(~flag.value)

        return lambda batch: strategy.run(replica_step, args=(batch,)), [w, flag]

    return InPlace(make)


@correct()
def step_that_calls_another_step():
    def make(strategy):
        w = rx.Variable(weights(w=(6, 3))["w"], name="w")
        losses = rx.Variable(jnp.zeros(2), name="losses")

        def replica_loss(batch):
            ctx = rx.get_replica_context()
            return ctx.global_mean(squares(batch.x @ w.value, batch))

        def replica_step(batch):
            ctx = rx.get_replica_context()
            grad = jax.grad(lambda w: ctx.global_mean(squares(batch.x @ w, batch)))(w.value)
            w.assign_sub(0.1 * ctx.all_reduce("mean", grad))

        @rx.function
        def evaluate(batch):
            return strategy.run(replica_loss, args=(batch,))

        def step(batch):
            before = evaluate(batch)
            strategy.run(replica_step, args=(batch,))
            losses.assign(jnp.stack([before, evaluate(batch)]))
            return losses.value

        return step, [w, losses]

    return InPlace(make)
