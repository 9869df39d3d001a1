"""Optimizers, precision and modules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import TOLERANCE, Job, check, numbers, raised

import replicax as rx

# -- optimizers, precision and modules ----------------------------------------


@check
def accumulated_scaled_and_clipped_steps(job: Job) -> Any:
    """Adam on micro-batches; an overflow on the last replica of all makes every worker skip."""
    optax = pytest.importorskip("optax")
    with job.strategy.scope():
        w = rx.Variable(np.float32([1.0, -1.0]), name="w")
        optimizer = rx.Optimizer(optax.adam(0.1), [w])
        scale = rx.precision.LossScale(8.0)

    @rx.function
    def step(batch: Any) -> Any:
        def replica_step(x: Any) -> Any:
            ctx = rx.get_replica_context()
            loss, gradients = rx.accumulate(lambda x: scale.multiply((x @ w.value) ** 2), x, 2, [w])
            gradients, norm = rx.clip_by_global_norm(gradients, 100.0)
            return loss, norm, scale.apply_gradients(optimizer, gradients), ctx.global_sum(x)

        return job.strategy.run(replica_step, args=(batch,))

    x = np.arange(14, dtype=np.float32).reshape(7, 2) / 14
    options = rx.InputOptions(policy="data")
    seen = []
    for rows in (x, np.where(np.arange(7)[:, None] == 6, np.inf, x).astype(np.float32), x):
        (batch,) = job.strategy.distribute_dataset([rows], options)
        loss, norm, applied, _ = step(batch)
        seen.append([float(loss), float(norm), bool(applied), float(scale.value)])

    start = jnp.float32([1.0, -1.0])
    tx, params = optax.adam(0.1), start
    state = tx.init(params)
    for _ in range(2):
        gradients = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(params)
        updates, state = tx.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(np.asarray(w), params, atol=1e-5)
    assert [one[2:] for one in seen] == [[True, 8.0], [False, 4.0], [True, 4.0]]
    assert seen[0][0] == pytest.approx(8 * np.mean((x @ [1.0, -1.0]) ** 2), rel=1e-5)
    rx.check_replicas_equal([w, scale.scale])
    return [seen[0], seen[2]]


@check
def sparse_rows_and_a_sharded_optimizer(job: Job) -> Any:
    """Rows that workers do not share, Adam in shares, and its state out of a checkpoint."""
    optax = pytest.importorskip("optax")
    start = np.arange(10, dtype=np.float32).reshape(5, 2) / 10
    table, w = job.variable(start, name="table"), job.variable([1.0, -1.0, 0.5], name="w")
    with job.strategy.scope():
        rows = rx.Optimizer(optax.sgd(0.5), [table])
        sharded = rx.Optimizer(rx.shard_optimizer(optax.adam(0.1)), [w])

    def replica_step(ids: Any) -> Any:
        ctx = rx.get_replica_context()

        def loss() -> Any:
            return ctx.global_mean(
                (rx.embedding_lookup(table, ids) ** 2).sum(1) * (w.value**2).sum()
            )

        value, (of_table, of_w) = rx.value_and_grad(loss, [table, w])()
        rx.apply_gradients(rows, ctx.all_reduce("mean", [of_table]))
        rx.apply_gradients(sharded, [of_w])
        return value

    ids = np.array([0, 3, 3, 4, 0, 0, 1], np.int32)
    options = rx.InputOptions(policy="data")
    (batch,) = job.strategy.distribute_dataset([ids], options)
    loss = job.step(replica_step)(batch)

    params = (jnp.asarray(start), jnp.float32([1.0, -1.0, 0.5]))
    tx = optax.adam(0.1)

    @jax.jit
    def by_hand(params: Any) -> Any:
        wanted, gradients = jax.value_and_grad(
            lambda p: ((p[0][ids] ** 2).sum(1) * (p[1] ** 2).sum()).mean()
        )(params)
        return wanted, gradients, *tx.update(gradients[1], tx.init(params[1]))

    wanted, gradients, updates, state = by_hand(params)
    np.testing.assert_allclose(loss, wanted, atol=TOLERANCE)
    np.testing.assert_allclose(table, params[0] - 0.5 * gradients[0], atol=TOLERANCE)
    np.testing.assert_allclose(w, params[1] + updates, atol=TOLERANCE)
    mu = sharded.state[0].mu[0]
    np.testing.assert_allclose(mu.value, state[0].mu, atol=TOLERANCE)
    assert [share.shape for share in mu.values] == [(1,)] * 2
    checkpoint = rx.checkpoint.Checkpoint(optimizer=sharded)
    checkpoint.save(job.folder / "sharded")
    mu.assign(np.zeros(3, np.float32))
    checkpoint.restore(job.folder / "sharded").assert_consumed()
    np.testing.assert_allclose(mu.value, state[0].mu, atol=TOLERANCE)
    return [float(loss), numbers(table), numbers(w), numbers(mu.value)]


@check
def packed_state_of_all_workers(job: Job) -> Any:
    """A packed state goes through steps; outside, all unpack it and pack it again."""
    optax = pytest.importorskip("optax")
    tx = rx.pack_optimizer(optax.sgd(0.5, momentum=0.5))
    params = rx.pack({"a": np.float32([1.0, -1.0]), "b": np.float32([[2.0]])})

    @rx.function
    def step(state: Any, batch: Any) -> Any:
        def replica_step(state: Any, x: Any) -> Any:
            ctx = rx.get_replica_context()
            params, kept = state

            def loss(params: Any) -> Any:
                whole = params.unpack()
                return ctx.global_mean(x @ whole["a"] * whole["b"][0, 0])

            value, gradients = rx.value_and_grad(loss)(params)
            updates, kept = tx.update(ctx.all_reduce("mean", gradients), kept, params)
            return (optax.apply_updates(params, updates), kept), value

        return job.strategy.run(replica_step, args=(state, batch))

    x = np.arange(14, dtype=np.float32).reshape(7, 2) / 14
    options = rx.InputOptions(policy="data")
    (batch,) = job.strategy.distribute_dataset([x], options)
    (params, kept), loss = step((params, tx.init(params)), batch)

    mean = x.mean(0)
    whole = params.unpack()
    np.testing.assert_allclose(loss, 2.0 * (mean @ [1.0, -1.0]), atol=TOLERANCE)
    np.testing.assert_allclose(whole["a"], [1.0, -1.0] - mean, atol=TOLERANCE)
    np.testing.assert_allclose(whole["b"], [[2.0 - 0.5 * (mean @ [1.0, -1.0])]], atol=TOLERANCE)
    again = rx.pack(whole)
    np.testing.assert_array_equal(again.parts[0], params.parts[0])
    state, _ = step((again, kept), batch)
    rx.check_replicas_equal(state)
    return [float(loss), numbers(whole["a"]), numbers(state[0].parts[0])]


@check
def a_module_of_flax_trains_as_on_one_device(job: Job) -> Any:
    optax = pytest.importorskip("optax")
    nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed")
    x = np.arange(28, dtype=np.float32).reshape(7, 4) / 28

    def made(seed: int) -> Any:
        module = nnx.Linear(4, 1, rngs=nnx.Rngs(seed))
        return module, nnx.Optimizer(module, optax.sgd(0.1), wrt=nnx.Param)

    with job.strategy.scope():  # Worker 1 starts from the weights of worker 0.
        module, optimizer = rx.nnx.adopt(*made(job.rank))

    def replica_step(x: Any) -> Any:
        ctx = rx.get_replica_context()
        loss, gradients = nnx.value_and_grad(
            lambda module: ctx.global_mean((module(x)[:, 0] - 1.0) ** 2)
        )(module)
        optimizer.update(module, ctx.all_reduce("mean", gradients))
        return loss

    step = rx.function(lambda batch: job.strategy.run(replica_step, args=(batch,)))
    options = rx.InputOptions(policy="data")
    losses = [float(step(b)) for b in job.strategy.distribute_dataset([x, x], options)]

    alone, its_optimizer = made(0)
    by_flax = nnx.jit(nnx.value_and_grad(lambda m: jnp.mean((m(x)[:, 0] - 1.0) ** 2)))
    for loss in losses:
        expected, gradients = by_flax(alone)
        assert loss == pytest.approx(float(expected), abs=TOLERANCE)
        its_optimizer.update(alone, gradients)
    kernel = np.asarray(module.kernel[...])
    module.bias[...] = jnp.full(1, float(job.rank))
    (batch,) = job.strategy.distribute_dataset([x])
    assert "on all workers" in raised(rx.errors.ContextError, lambda: step(batch))
    with job.strategy.scope():
        rx.nnx.adopt(module)
    assert np.asarray(module.bias[...]).tolist() == [0.0]
    step(batch)
    np.testing.assert_allclose(kernel, np.asarray(alone.kernel[...]), atol=1e-5)
    return numbers(kernel)
