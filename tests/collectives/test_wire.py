"""float32 arrays that travel in half precision and are added in float32."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from replicax.collectives import CommunicationOptions, ReduceOp, collectives_in, local, mapped
from replicax.collectives._wire import rounded

SUM, MEAN, MAX = ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MAX
EPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
BFLOAT16, FLOAT16 = (CommunicationOptions(wire_dtype=wire) for wire in EPS)


def on(n, options):
    return {"axis_name": "replica", "num_replicas": n, "options": options}


def drawn(*shape, seed=0, decades=4):
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=shape) * 10 ** rng.uniform(-decades, decades, shape)
    return numbers.astype(np.float32)


def nearest(x, wire):
    """What NumPy makes of a float16 or a bfloat16 with an exponent without limits."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(mantissa / EPS[wire]) * EPS[wire], exponent)


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=2).map(tuple), max_size=4),
    st.integers(2, 4),
    st.sampled_from(sorted(EPS)),
    st.sampled_from([SUM, MEAN]),
)
def test_any_sizes_on_any_number_of_replicas(on_replicas, shapes, n, wire, op):
    leaves = [drawn(n, *shape, seed=i) for i, shape in enumerate(shapes)]
    options = CommunicationOptions(wire_dtype=wire)

    results = on_replicas(lambda *ls: mapped.all_reduce(op, ls, **on(n, options)), *leaves, n=n)
    eager = local.all_reduce(
        op, [[leaf[i] for leaf in leaves] for i in range(n)], jax.devices()[:n], wire_dtype=wire
    )

    for number, (leaf, result) in enumerate(zip(leaves, results, strict=True)):
        total = nearest(leaf, wire).sum(0)
        if n > 2:
            total = nearest(total.astype(np.float32), wire)
        wanted = total / n if op is MEAN else total
        slack = EPS[wire] * 2 if n > 2 else 1e-6  # Where a sum lies between two numbers.
        np.testing.assert_allclose(
            result[0], wanted, rtol=slack, atol=1e-6 * np.abs(leaf).max(initial=0)
        )
        assert len({result[i].tobytes() for i in range(n)}) == 1
        np.testing.assert_allclose(eager[0][number], result[0], rtol=1e-6, atol=1e-9)


def test_only_float32_arrays_in_sums_are_touched(on_replicas, hlo_on_replicas):
    exact = 1 + np.float32(2**-20)
    leaves = [
        np.full((2, 3), 2**24 - 1, np.int32),
        np.full(2, exact),  # Scalars: losses and counts.
        np.full((2, 3), 1.5, np.float16),
        np.full((2, 3), exact),
    ]
    step = partial(mapped.all_reduce, SUM, **on(2, BFLOAT16))
    integers, scalar, half, array = on_replicas(lambda *ls: step(ls), *leaves)
    assert (integers[0] == 2**25 - 2).all()
    assert (half[0] == 3).all()
    assert scalar[0] == 2 * exact
    assert (array[0] == 2).all()

    (largest,) = on_replicas(lambda x: mapped.all_reduce(MAX, [x], **on(2, BFLOAT16)), leaves[3])
    assert (largest[0] == exact).all()

    alone = on_replicas(
        lambda x: mapped.all_reduce(SUM, [x], **on(1, BFLOAT16)), leaves[3][:1], n=1
    )
    assert (alone[0] == exact).all()
    assert collectives_in(hlo_on_replicas(lambda *ls: step(ls), *leaves))


def test_float16_neither_overflows_nor_loses_the_small(on_replicas):
    x = np.array([[1e30, -3e38, 1e15], [1e30, 1e38, 0.0]], np.float32)
    tiny = np.array([[1e-30, 3e-36], [1e-30, 0.0]], np.float32)
    step = lambda *ls: [mapped.all_reduce(SUM, [leaf], **on(2, FLOAT16))[0] for leaf in ls]  # noqa: E731
    large, small = on_replicas(step, x, tiny)
    np.testing.assert_allclose(large[0], x.astype(np.float64).sum(0), rtol=1e-3, atol=1e38 * 2**-38)
    np.testing.assert_allclose(small[0], tiny.sum(0), rtol=1e-3)


def test_what_is_not_finite_stays_so():
    x = np.array([np.inf, -np.inf, np.nan, 1.0, -0.0], np.float32)
    for found in jax.jit(lambda x: [rounded(x, wire) for wire in EPS])(x):
        np.testing.assert_array_equal(found, x)
        assert np.signbit(np.asarray(found))[-1]


# --- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4])
def test_half_the_bytes_cross(hlo_on_replicas, n):
    """XLA would widen bfloat16 to float32 between CPU devices; bits it leaves alone."""
    leaves = [np.ones((n, 40), np.float32), np.ones((n, 24), np.float32)]
    text = hlo_on_replicas(lambda *ls: mapped.all_reduce(MEAN, ls, **on(n, BFLOAT16)), *leaves, n=n)
    found = collectives_in(text)
    assert {dtype for each in found for dtype in each.dtypes} == {"uint16"}
    kinds = ["all-gather"] if n == 2 else ["all-gather", "all-to-all"]
    assert sorted(each.kind for each in found) == kinds
    received = {"all-gather": n * 64 if n == 2 else 64, "all-to-all": 64}
    assert all(each.bytes == 2 * received[each.kind] for each in found)


# --- parts, and gradients ------------------------------------------------------------------------


def test_reduce_scatter(on_replicas):
    wire = "bfloat16"
    x, options = drawn(3, 2, 6, decades=1), CommunicationOptions(wire_dtype=wire)
    step = partial(mapped.reduce_scatter, MEAN, axis=1, **on(3, options))
    found = np.concatenate(list(on_replicas(step, x, n=3)), axis=1)
    np.testing.assert_allclose(found, nearest(x, wire).mean(0), rtol=1e-6, atol=1e-6)
    eager = local.reduce_scatter(MEAN, [[one] for one in x], 1, jax.devices()[:3], wire_dtype=wire)
    np.testing.assert_allclose(
        np.concatenate([part for (part,) in eager], axis=1), found, rtol=1e-6
    )


def test_the_gradient_is_the_same_collective_of_the_cotangents(on_replicas):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)

    def gradients(x):
        weight = 1.0 + lax.axis_index("replica")
        total = lambda x: mapped.all_reduce(MEAN, [x], **on(2, BFLOAT16))[0]  # noqa: E731
        part = lambda x: mapped.reduce_scatter(SUM, x, 0, **on(2, BFLOAT16))  # noqa: E731
        return [jax.grad(lambda x, f=f: (weight * f(x) ** 2).sum())(x) for f in (total, part)]

    of_total, of_part = on_replicas(gradients, x)
    mean, total = x.mean(0), x.sum(0)
    np.testing.assert_allclose(of_total, np.stack([3 * mean, 3 * mean]), rtol=0.01)
    np.testing.assert_allclose(of_part, [2 * total * [1, 1, 2, 2]] * 2, rtol=0.01)
