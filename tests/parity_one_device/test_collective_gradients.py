"""Gradients through collectives: those of the sum over the replicas of what each computes.

Each case is written twice: as a replica sees it, and by hand on the list of all replicas' values
with no collective at all, which JAX differentiates on one device.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .models import mirrored

MAX, MIN = rx.ReduceOp.MAX, rx.ReduceOp.MIN
SHAPE = (6, 3)


def merge(op, axis):
    def merge_fn(strategy, value):
        return strategy.reduce(op, value, axis=axis)

    return lambda ctx, x: ctx.merge_call(merge_fn, args=(x,))


def merge_gather(ctx, x):
    return ctx.merge_call(lambda strategy, value: strategy.gather(value, axis=0), args=(x,))


def scattered(total, axis):
    return lambda xs: jnp.split(total(jnp.stack(xs)), len(xs), axis=axis)


def on_all(combine):
    return lambda xs: [combine(jnp.stack(xs))] * len(xs)


def joined(axis):
    return lambda xs: [jnp.concatenate(xs, axis=axis)] * len(xs)


def total(stacked):
    return jnp.sum(stacked, axis=0)


def mean(stacked):
    return jnp.mean(stacked, axis=0)


COLLECTIVES = {
    "all_reduce sum": (lambda ctx, x: ctx.all_reduce("sum", x), on_all(total)),
    "all_reduce mean": (lambda ctx, x: ctx.all_reduce("mean", x), on_all(mean)),
    "all_reduce max": (
        lambda ctx, x: ctx.all_reduce(MAX, x),
        on_all(lambda stacked: jnp.max(stacked, axis=0)),
    ),
    "all_reduce min": (
        lambda ctx, x: ctx.all_reduce(MIN, x),
        on_all(lambda stacked: jnp.min(stacked, axis=0)),
    ),
    "all_gather 0": (lambda ctx, x: ctx.all_gather(x, axis=0), joined(0)),
    "all_gather -1": (lambda ctx, x: ctx.all_gather(x, axis=-1), joined(-1)),
    "reduce_scatter sum": (lambda ctx, x: ctx.reduce_scatter("sum", x), scattered(total, 0)),
    "reduce_scatter mean": (
        lambda ctx, x: ctx.reduce_scatter("mean", x, axis=1),
        scattered(mean, 1),
    ),
    "broadcast 0": (lambda ctx, x: ctx.broadcast(x), on_all(lambda stacked: stacked[0])),
    "broadcast last": (
        lambda ctx, x: ctx.broadcast(x, source=ctx.num_replicas_in_sync - 1),
        on_all(lambda stacked: stacked[-1]),
    ),
    "global_mean": (
        lambda ctx, x: ctx.global_mean(x),
        on_all(lambda stacked: jnp.mean(stacked, axis=(0, 1))),
    ),
    "global_sum": (
        lambda ctx, x: ctx.global_sum(x),
        on_all(lambda stacked: jnp.sum(stacked, axis=(0, 1))),
    ),
}
MERGES = {
    "merge reduce sum": (merge("sum", None), on_all(total)),
    "merge reduce mean": (merge("mean", None), on_all(mean)),
    "merge reduce max": (merge(MAX, None), on_all(lambda stacked: jnp.max(stacked, axis=0))),
    "merge reduce mean axis": (
        merge("mean", 0),
        on_all(lambda stacked: jnp.mean(stacked, axis=(0, 1))),
    ),
    "merge gather": (merge_gather, joined(0)),
}


@jax.jit
def before(x):
    return jnp.sin(x) + x


@jax.jit
def after(y, factor):
    """One number, whose gradient differs from element to element and between replicas."""
    return jnp.sum(jnp.cos(y) * factor * (1 + jnp.arange(y.size).reshape(y.shape)) / y.size)


def inputs(n, shapes=None):
    rng = np.random.default_rng(n)
    shapes = shapes or [SHAPE] * n
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def by_hand(one_device, xs):
    """The gradient of the sum over replicas, with respect to each replica's value."""

    def everything(xs):
        ys = one_device([before(x) for x in xs])
        return sum(after(y, 1.0 + i) for i, y in enumerate(ys))

    return jax.grad(everything)(xs)


def as_it_is(step):
    return step


def per_replica_gradients(runner, collective, xs):
    strategy = mirrored(len(xs))
    factors = rx.PerReplica([jnp.float32(1.0 + i) for i in range(len(xs))])

    def replica_fn(x, factor):
        ctx = rx.get_replica_context()
        return jax.grad(lambda x: after(collective(ctx, before(x)), factor))(x)

    step = runner(lambda x, factor: strategy.run(replica_fn, args=(x, factor)))
    return strategy.local_results(step(rx.PerReplica(xs), factors))


def assert_gradients(actual, expected):
    assert len(actual) == len(expected)
    for gradient, by_hand_gradient in zip(actual, expected, strict=True):
        np.testing.assert_allclose(gradient, by_hand_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_gradient_of_a_collective(runner, name, n):
    collective, one_device = COLLECTIVES[name]
    xs = inputs(n)
    assert_gradients(per_replica_gradients(runner, collective, xs), by_hand(one_device, xs))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", MERGES)
def test_gradient_of_a_merge_call(runner, name, n):
    collective, one_device = MERGES[name]
    xs = inputs(n)
    if not runner.compiled:  # It has no gradient there, and must say so.
        with pytest.raises(rx.errors.UnimplementedError, match="merge_call"):
            per_replica_gradients(runner, collective, xs)
        return
    assert_gradients(per_replica_gradients(runner, collective, xs), by_hand(one_device, xs))


@pytest.mark.parametrize("op", [MAX, MIN])
def test_gradient_of_an_extremum_is_shared_by_those_who_tie(runner, op):
    xs = [jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 5.0, 3.0]), jnp.array([0.0, 5.0, 3.0])]
    over = jnp.max if op is MAX else jnp.min
    expected = by_hand(on_all(lambda stacked: over(stacked, axis=0)), xs)
    assert_gradients(
        per_replica_gradients(runner, lambda ctx, x: ctx.all_reduce(op, x), xs), expected
    )


@pytest.mark.parametrize("op", [MAX, MIN])
def test_gradient_of_a_scattered_extremum_is_right_or_refused(runner, op):
    xs = inputs(3)
    over = jnp.max if op is MAX else jnp.min
    expected = by_hand(scattered(lambda stacked: over(stacked, axis=0), 0), xs)

    def gradients():
        return per_replica_gradients(runner, lambda ctx, x: ctx.reduce_scatter(op, x), xs)

    if runner.compiled:
        assert_gradients(gradients(), expected)
    else:
        with pytest.raises(rx.errors.UnimplementedError, match="reduce_scatter"):
            gradients()


def test_gradient_of_collectives_one_after_the_other(runner):
    def collective(ctx, x):
        everywhere = ctx.all_gather(before(x), axis=0)
        own = ctx.reduce_scatter("mean", everywhere * x[0, 0])
        return ctx.all_reduce("sum", own * x)

    def one_device(xs):
        everywhere = jnp.concatenate([before(x) for x in xs])
        parts = jnp.split(mean(jnp.stack([everywhere * x[0, 0] for x in xs])), len(xs))
        return on_all(total)([part * x for part, x in zip(parts, xs, strict=True)])

    xs = inputs(3)
    assert_gradients(per_replica_gradients(runner, collective, xs), by_hand(one_device, xs))


def test_gradient_of_a_tree_of_small_leaves(runner):
    """Leaves of one tree travel together; each must get its own gradient back."""

    def collective(ctx, x):
        tree = {"rows": x, "first": x[0], "number": x[1, 1], "count": jnp.int32(3)}
        out = ctx.all_reduce("mean", tree)
        return out["rows"] * out["first"] + out["number"] * out["count"]

    def one_device(xs):
        stacked = jnp.stack(xs)
        first, number = mean(stacked[:, 0]), mean(stacked[:, 1, 1])
        return [mean(stacked) * first + number * 3] * len(xs)

    xs = inputs(3)
    assert_gradients(per_replica_gradients(runner, collective, xs), by_hand(one_device, xs))


def test_second_derivative_through_an_all_reduce(runner):
    """The gradient of a gradient is that of the sum over replicas of the gradients' sums."""
    strategy = mirrored(3)
    xs = [jnp.array([0.3, 0.7]), jnp.array([1.1, -0.2]), jnp.array([0.5, 0.9])]

    def replica_fn(x):
        ctx = rx.get_replica_context()

        def first(x):
            return jax.grad(lambda x: jnp.sum(ctx.all_reduce("mean", x**2) ** 2))(x)

        return jax.grad(lambda x: jnp.sum(first(x)))(x)

    def one_device(xs):
        firsts = jax.grad(lambda xs: 3 * jnp.sum(mean(jnp.stack([x**2 for x in xs])) ** 2))
        return jax.grad(lambda xs: sum(jnp.sum(g) for g in firsts(xs)))(xs)

    step = runner(lambda x: strategy.run(replica_fn, args=(x,)))
    assert_gradients(strategy.local_results(step(rx.PerReplica(xs))), one_device(xs))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("lengths", [(3, 1, 2), (2, 0, 1), (0, 0, 4)])
def test_gradient_of_an_uneven_eager_all_gather(lengths):
    xs = inputs(3, [(length, 2) for length in lengths])
    actual = per_replica_gradients(as_it_is, lambda ctx, x: ctx.all_gather(x, axis=0), xs)
    assert_gradients(actual, by_hand(joined(0), xs))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [5, 2, 1])
def test_gradient_of_the_global_mean_of_uneven_rows(runner, rows):
    """What each replica gets for its own rows is the number of replicas times one device's."""
    strategy = mirrored(3)
    x = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)

    def replica_fn(x):
        ctx = rx.get_replica_context()
        return jax.grad(lambda x: jnp.sum(ctx.global_mean(before(x)) ** 2))(x)

    step = runner(lambda x: strategy.run(replica_fn, args=(x,)))
    (batch,) = strategy.distribute_dataset([x])
    actual = strategy.gather(step(batch), axis=0)
    expected = jax.grad(lambda x: jnp.sum(jnp.mean(before(x), axis=0) ** 2))(x)
    assert_gradients([actual / 3], [expected])
