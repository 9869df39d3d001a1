"""Modules under a strategy give the numbers of one device without any."""

from __future__ import annotations

import functools

import numpy as np
import optax
import pytest

import replicax as rx

from .modules import TABLE, Dense, Line, Normalised, nnx, squares


@functools.cache
def mirrored(n):
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(n)])


def table(rows, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, 6)).astype(np.float32)
    return x, np.sin(x).sum(axis=1)


def sgd():
    return optax.sgd(0.1)


def made(make, transformation):
    module = make(nnx.Rngs(0))
    return module, nnx.Optimizer(module, transformation(), wrt=nnx.Param)


def by_flax(module, optimizer, batches):
    """Flax's own training on one device."""

    @nnx.jit
    def step(module, optimizer, x, y):
        loss, gradients = nnx.value_and_grad(lambda m: squares(m, x, y).mean())(module)
        optimizer.update(module, gradients)
        return loss

    return [float(step(module, optimizer, *batch)) for batch in batches]


def replica_step(module, optimizer, x, y):
    """The same on a replica; the module is an argument."""
    ctx = rx.get_replica_context()
    loss, gradients = nnx.value_and_grad(lambda m: ctx.global_mean(squares(m, x, y)))(module)
    optimizer.update(module, ctx.all_reduce("mean", gradients))
    return loss


def by_replicax(strategy, module, optimizer, batches, make_step=rx.function):
    with strategy.scope():
        rx.nnx.adopt(module, optimizer)
    step = make_step(lambda batch: strategy.run(replica_step, args=(module, optimizer, *batch)))
    options = rx.InputOptions(global_batch_size=len(batches[0][0]))
    dataset = tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))
    return [float(step(batch)) for batch in strategy.distribute_dataset(dataset, options)]


def check_equal(module, reference, *, atol=1e-6):
    mine, theirs = nnx.state(module), nnx.state(reference)
    for (path, one), (_, other) in zip(
        nnx.to_flat_state(mine), nnx.to_flat_state(theirs), strict=True
    ):
        if not isinstance(one, nnx.RngKey):
            np.testing.assert_allclose(
                np.asarray(one[...]), np.asarray(other[...]), atol=atol, err_msg=str(path)
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_uneven_batches_on_three_replicas(name):
    module, optimizer = made(*TABLE[name])
    reference, its_optimizer = made(*TABLE[name])
    batches = [table(5, seed) for seed in range(2)]

    expected = by_flax(reference, its_optimizer, batches)
    losses = by_replicax(mirrored(3), module, optimizer, batches)

    np.testing.assert_allclose(losses, expected, atol=1e-6, rtol=1e-6)
    check_equal(module, reference, atol=2e-6)
    check_equal(optimizer, its_optimizer, atol=2e-6)


def test_both_runners(runner, strategy):
    module, optimizer = made(Line, sgd)
    reference, its_optimizer = made(Line, sgd)
    batches = [table(4, seed) for seed in range(2)]

    expected = by_flax(reference, its_optimizer, batches)
    losses = by_replicax(strategy, module, optimizer, batches, runner)

    np.testing.assert_allclose(losses, expected, atol=1e-6, rtol=1e-6)
    check_equal(module, reference)


@pytest.mark.slow
def test_synchronised_batch_norm_is_that_of_one_device(strategy):
    sync = functools.partial(Normalised, axis_name="replica")
    module, optimizer = made(sync, sgd)
    reference, its_optimizer = made(Normalised, sgd)
    batches = [table(6, seed) for seed in range(2)]

    expected = by_flax(reference, its_optimizer, batches)
    losses = by_replicax(strategy, module, optimizer, batches)

    np.testing.assert_allclose(losses, expected, atol=1e-5)
    check_equal(module, reference, atol=1e-5)


@pytest.mark.slow
def test_accumulated_gradients_are_those_of_one_device(strategy):
    module, optimizer = made(Dense, sgd)
    reference, its_optimizer = made(Dense, sgd)
    with strategy.scope():
        rx.nnx.adopt(module, optimizer)

    @rx.function
    def step(batch):
        def replica_step(*batch):
            parameters = rx.nnx.variables(module)
            loss, gradients = rx.accumulate(
                lambda rows: squares(module, *rows), batch, 2, parameters
            )
            gradients, _ = rx.clip_by_global_norm(gradients, 100.0)
            rx.apply_gradients(optimizer, gradients, module)
            return loss

        return strategy.run(replica_step, args=batch)

    (batch,) = strategy.distribute_dataset([table(5)])
    loss = float(step(batch))

    assert loss == pytest.approx(by_flax(reference, its_optimizer, [table(5)])[0], rel=1e-6)
    check_equal(module, reference)


@pytest.mark.slow
def test_a_module_with_wrong_gradients_is_refused_by_name(strategy):
    with strategy.scope():
        module, optimizer = rx.nnx.adopt(*made(Dense, sgd))
    before = [np.asarray(x) for x in nnx.to_flat_state(nnx.state(module)).leaves]

    def forgetful(x, y):
        gradients = nnx.grad(lambda m: squares(m, x, y).mean())(module)
        optimizer.update(module, gradients)

    step = rx.function(lambda batch: strategy.run(forgetful, args=batch))
    (batch,) = strategy.distribute_dataset([table(4)])
    with pytest.raises(rx.errors.VaryingWriteError, match=r"Dense\.first\.(bias|kernel)"):
        step(batch)
    for one, other in zip(before, nnx.to_flat_state(nnx.state(module)).leaves, strict=True):
        np.testing.assert_array_equal(one, other)
