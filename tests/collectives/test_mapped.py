from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from replicax.collectives import (
    LIMITS,
    CommunicationOptions,
    ReduceOp,
    Transport,
    collectives_in,
    mapped,
)
from replicax.errors import ArgumentTypeError, ContextError, InternalError, InvalidArgumentError

AXIS = "replica"
SUM, MEAN, MAX, MIN = ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MAX, ReduceOp.MIN
NUMPY = {SUM: np.sum, MEAN: np.mean, MAX: np.max, MIN: np.min}


def on(n):
    return {"axis_name": AXIS, "num_replicas": n}


def reduce_one(op, x, n=2):
    (result,) = mapped.all_reduce(op, [x], **on(n))
    return result


def values(*shape, dtype=np.float32, seed=0):
    drawn = np.random.default_rng(seed).normal(size=shape) * 5
    return jnp.asarray(drawn.astype(np.float32)).astype(dtype)


# --- all_reduce: numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, np.uint8])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_all_reduce_equals_numpy(on_replicas, op, dtype, n):
    x = np.arange(n * 6).reshape(n, 2, 3).astype(dtype)

    result = on_replicas(partial(reduce_one, op, n=n), x, n=n)

    for replica in range(n):
        np.testing.assert_allclose(result[replica], NUMPY[op](x, axis=0), rtol=1e-6)
    integer_mean = op is MEAN and np.issubdtype(dtype, np.integer)
    assert result.dtype == (np.float32 if integer_mean else dtype)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("op", list(ReduceOp))
def test_half_precision_keeps_its_dtype(on_replicas, op, dtype):
    result = on_replicas(partial(reduce_one, op), values(2, 5, dtype=dtype))
    assert result.dtype == dtype


@pytest.mark.parametrize("op", [SUM, MEAN])
def test_complex(on_replicas, op):
    x = values(2, 3) + 1j * values(2, 3, seed=1)
    result = on_replicas(partial(reduce_one, op), x)
    np.testing.assert_allclose(result[0], NUMPY[op](x, axis=0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32])
@pytest.mark.parametrize("n", [2, 8])
def test_the_mean_of_integers_never_wraps(on_replicas, dtype, n):
    limits = np.iinfo(dtype)
    x = np.full((n, 3), [limits.max, limits.min, limits.max - 1], dtype)
    x[0, 2] = limits.min

    result = on_replicas(partial(reduce_one, MEAN, n=n), x, n=n)

    np.testing.assert_allclose(result[n - 1], x.astype(np.float64).mean(axis=0), rtol=1e-6)


def test_the_mean_of_small_integers_is_exact(on_replicas):
    x = np.array([[7, -7, 0, 2**24 + 1], [-8, 8, 1, -(2**24)]], np.int32)
    result = on_replicas(partial(reduce_one, MEAN), x)
    np.testing.assert_array_equal(result[0], [-0.5, 0.5, 0.5, 0.5])


def test_64_bit_integers(run_with_64_bits):
    result, expected, dtype = run_with_64_bits(
        lambda x: reduce_one(MEAN, x), np.array([[2**62, 3], [2**62, 4]], np.int64)
    )
    assert dtype == np.float64
    np.testing.assert_array_equal(result, expected)


@pytest.fixture
def run_with_64_bits(on_replicas):
    def run(function, x):
        with jax.enable_x64(new_val=True):
            result = on_replicas(function, x)
        return np.asarray(result[0]), [float(2**62), 3.5], result.dtype

    return run


def test_bools_have_a_maximum_but_no_sum(on_replicas):
    x = np.array([[True, False, False], [True, True, False]])
    np.testing.assert_array_equal(on_replicas(partial(reduce_one, MAX), x)[1], [1, 1, 0])
    np.testing.assert_array_equal(on_replicas(partial(reduce_one, MIN), x)[1], [1, 0, 0])
    for op in (SUM, MEAN):
        with pytest.raises(ArgumentTypeError, match=r"bool\[3\]") as caught:
            on_replicas(partial(reduce_one, op), x)
        assert "x.astype(jnp.int32)" in str(caught.value)


def test_what_cannot_be_reduced_is_named(on_replicas):
    x = values(2, 3)
    with pytest.raises(ArgumentTypeError, match="complex numbers have no order"):
        on_replicas(lambda x: reduce_one(MAX, x + 1j), x)
    with pytest.raises(ArgumentTypeError, match="PRNG keys"):
        on_replicas(lambda _: reduce_one(SUM, jax.random.key(0)), x)
    with pytest.raises(ArgumentTypeError, match=r"Leaf 1 is no array: 'text' \(str\)"):
        on_replicas(lambda x: mapped.all_reduce(SUM, [x, "text"], **on(2)), x)
    with pytest.raises(ArgumentTypeError, match=r"The value is no array: None"):
        on_replicas(lambda _: reduce_one(SUM, None), x)
    with pytest.raises(ArgumentTypeError, match="is no array"):
        on_replicas(lambda _: reduce_one(SUM, np.array(["a"])), x)
    with pytest.raises(InvalidArgumentError, match="avg"):
        on_replicas(partial(reduce_one, "avg"), x)


def test_numbers_and_numpy_arrays_are_leaves(on_replicas):
    def step(x):
        return mapped.all_reduce("sum", [1.5, np.arange(2), x], **on(2))

    number, array, _ = on_replicas(step, values(2, 3))
    assert number.tolist() == [3.0, 3.0]
    assert array.tolist() == [[0, 2], [0, 2]]


def test_no_leaves_and_empty_leaves(on_replicas, hlo_on_replicas):
    def step(x):
        assert mapped.all_reduce(SUM, [], **on(2)) == []
        return mapped.all_reduce(MEAN, [x, x.astype(jnp.int32), x[:, :0].astype(jnp.int8)], **on(2))

    x = jnp.zeros((2, 3, 0), jnp.bfloat16)
    results = on_replicas(step, x)
    assert [leaf.shape for leaf in results] == [(2, 3, 0)] * 3
    assert [str(leaf.dtype) for leaf in results] == ["bfloat16", "float32", "float32"]
    assert collectives_in(hlo_on_replicas(step, x)) == ()


def test_outside_a_mapped_program_and_with_a_wrong_number():
    with pytest.raises(ContextError, match="outside a mapped program"):
        reduce_one(SUM, jnp.ones(2))


def test_a_wrong_number_of_replicas_is_refused(on_replicas):
    with pytest.raises(InternalError, match="`num_replicas=3`"):
        on_replicas(partial(reduce_one, SUM, n=3), values(2, 3))


# --- all_reduce: packing -------------------------------------------------------------------------

SHAPES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
        st.sampled_from(["float32", "int32", "uint8"]),
    ),
    max_size=12,
)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(SHAPES, st.sampled_from([0, 16, 64]), st.sampled_from(list(ReduceOp)))
def test_packed_leaves_equal_leaves_alone(on_replicas, shapes, bytes_per_pack, op):
    leaves = [
        jnp.asarray(np.random.default_rng(i).integers(0, 100, (2, *shape)).astype(dtype))
        for i, (shape, dtype) in enumerate(shapes)
    ]
    options = CommunicationOptions(bytes_per_pack=bytes_per_pack)

    def step(*leaves):
        return mapped.all_reduce(op, leaves, options=options, **on(2))

    results = on_replicas(step, *leaves)

    for leaf, result in zip(leaves, results, strict=True):
        assert result.shape == leaf.shape
        np.testing.assert_allclose(result[1], NUMPY[op](leaf, axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "count"), [(MAX, 20), pytest.param(MEAN, 60, marks=pytest.mark.slow)]
)
def test_many_small_leaves_make_a_handful_of_collectives(hlo_on_replicas, op, count):
    leaves = jnp.ones((2, count, 32, 32))
    text = hlo_on_replicas(lambda x: mapped.all_reduce(op, list(x), **on(2)), leaves)
    assert 1 <= len(collectives_in(text)) <= 3
    assert sum(one.bytes for one in collectives_in(text)) == count * 32 * 32 * 4


def test_a_large_leaf_is_never_copied_into_a_pack(hlo_on_replicas):
    leaves = [jnp.ones((2, 300, 300)), *(jnp.ones((2, 8)) for _ in range(5))]

    def step(*leaves):
        return mapped.all_reduce(SUM, [leaf * 2 for leaf in leaves], **on(2))

    text = hlo_on_replicas(step, *leaves)
    # XLA may give both to one instruction, each in its own buffer.
    shapes = [shape for one in collectives_in(text) for shape in one.shapes]
    assert sorted(shapes) == [(40,), (300, 300)]


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("op", [SUM, MEAN])
def test_a_pack_has_the_bits_of_a_psum_a_leaf(on_replicas, op, n):
    """Inside a process the replicas are added in one order, wherever a number stands."""
    rng = np.random.default_rng(0)
    shapes = [(7,), (3, 5), (), (40, 40), (1,)]
    leaves = [
        (rng.normal(size=(n, *shape)) * 10 ** rng.uniform(-6, 6, (n, *shape))).astype(np.float32)
        for shape in shapes
    ]

    def by_leaf(*leaves):
        totals = [lax.psum(leaf, AXIS) for leaf in leaves]
        return [total / n for total in totals] if op is MEAN else totals

    packed = on_replicas(lambda *leaves: mapped.all_reduce(op, leaves, **on(n)), *leaves, n=n)

    for one, other in zip(packed, on_replicas(by_leaf, *leaves, n=n), strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


def test_packs_follow_the_backward_pass():
    """The last layer's gradients are there first, so they start to travel first."""
    found = []

    def step(weights, x):
        def loss(weights):
            hidden = x
            for w in weights:
                hidden = jnp.tanh(hidden @ w)
            return hidden.sum()

        options = CommunicationOptions(bytes_per_pack=2 * 4 * 9)
        gradients = jax.grad(loss)(weights)
        _, packs = mapped.all_reduce_in_packs(MEAN, gradients, options=options, **on(2))
        found.extend(packs)
        return gradients

    jax.make_jaxpr(step, axis_env=[(AXIS, 2)])([jnp.ones((3, 3))] * 5, jnp.ones((2, 3)))
    assert found == [(4, 3), (2, 1), (0,)]


def test_only_what_is_packed_waits_behind_a_barrier():
    leaves = [jnp.ones((2, 3)), jnp.ones((300, 300)), jnp.ones(5)]
    jaxpr = jax.make_jaxpr(
        lambda *leaves: mapped.all_reduce(SUM, leaves, **on(2)), axis_env=[(AXIS, 2)]
    )(*leaves)
    barriers = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "optimization_barrier"]
    assert [[v.aval.shape for v in eqn.invars] for eqn in barriers] == [[(2, 3), (5,)]]


@pytest.mark.parametrize("transport", list(Transport), ids=lambda each: each.value)
def test_the_transport_tells_what_is_worth_packing(transport):
    limit = LIMITS[transport].leaf_bytes
    avals = [jax.ShapeDtypeStruct((size,), jnp.uint8) for size in (limit, limit + 1, 8)]
    found = []

    def step(*leaves):
        results, packs = mapped.all_reduce_in_packs(MAX, leaves, transport=transport, **on(2))
        found.extend(packs)
        return results

    jax.make_jaxpr(step, axis_env=[(AXIS, 2)])(*avals)
    assert found == [(1,), (0, 2)]


def test_bytes_per_pack_decides(hlo_on_replicas):
    leaves = [jnp.ones((2, 25)) for _ in range(8)]
    options = CommunicationOptions(bytes_per_pack=200)
    text = hlo_on_replicas(
        lambda *ls: mapped.all_reduce(SUM, ls, options=options, **on(2)), *leaves
    )
    shapes = [shape for one in collectives_in(text) for shape in one.shapes]
    assert shapes == [(50,)] * 4


# --- gradients -----------------------------------------------------------------------------------
# Replica i weights its loss with 1 + i: the cotangents differ, so a wrong rule shows.


def weighted(function, n=2):
    """The gradient of replica i's `sum((1 + i) * function(x) ** 2)` for its own x."""

    def gradient(x):
        weight = 1.0 + lax.axis_index(AXIS)
        return jax.grad(lambda x: (weight * function(x) ** 2).sum())(x)

    return gradient


def cotangents(total, n):
    """Of the same losses, `f32[n, ...]`: 2 * (1 + i) * total."""
    return np.stack([2 * (1 + i) * np.asarray(total) for i in range(n)])


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("op", [SUM, MEAN])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint, jax.jit])
def test_the_gradient_is_the_same_collective_of_the_cotangents(on_replicas, op, n, wrap):
    x = values(n, 3)
    result = on_replicas(weighted(wrap(partial(reduce_one, op, n=n))), x, n=n)
    expected = NUMPY[op](cotangents(NUMPY[op](x, axis=0), n), axis=0)
    for replica in range(n):
        np.testing.assert_allclose(result[replica], expected, rtol=1e-5)


@pytest.mark.parametrize("op", [SUM, MEAN])
def test_the_gradient_inside_a_scan(on_replicas, op):
    def repeated(x):
        def once(carry, _):
            return reduce_one(op, carry), None

        return lax.scan(once, x, length=3)[0]

    x = values(2, 3)
    factor = {SUM: 4, MEAN: 1}[op]  # Two more reductions of what is equal already.
    total = NUMPY[op](x, axis=0) * factor
    back = NUMPY[op](cotangents(total, 2), axis=0) * factor
    for wrap in (lambda f: f, jax.checkpoint):
        result = on_replicas(weighted(wrap(repeated)), x)
        np.testing.assert_allclose(result[0], back, rtol=1e-5)
        np.testing.assert_allclose(result[1], back, rtol=1e-5)


def test_the_gradient_of_a_pack_of_which_one_leaf_is_used(on_replicas):
    def step(x):
        return mapped.all_reduce(MEAN, [x, 2 * x, x[:2] * 3], **on(2))[1]

    x = values(2, 3)
    result = on_replicas(weighted(step), x)
    expected = 2 * cotangents(2 * x.mean(axis=0), 2).mean(axis=0)
    np.testing.assert_allclose(result[1], expected, rtol=1e-5)


@pytest.mark.parametrize("op", list(ReduceOp))
def test_the_tangent_of_a_reduction(on_replicas, op):
    x, t = values(2, 4), values(2, 4, seed=1)
    primal, tangent = on_replicas(lambda x, t: jax.jvp(partial(reduce_one, op), (x,), (t,)), x, t)
    expected = NUMPY[op](x, axis=0)
    np.testing.assert_allclose(primal[0], expected, rtol=1e-6)
    slope = {
        SUM: t.sum(axis=0),
        MEAN: t.mean(axis=0),
        MAX: np.where(x[0] > x[1], t[0], t[1]),
        MIN: np.where(x[0] < x[1], t[0], t[1]),
    }[op]
    np.testing.assert_allclose(tangent[1], slope, rtol=1e-5)


@pytest.mark.parametrize("op", [MAX, MIN])
def test_the_gradient_of_an_extremum_is_that_of_one_device(on_replicas, op):
    x = jnp.array([[1.0, 5.0, 2.0], [3.0, 4.0, 2.0], [3.0, 0.0, 2.0], [0.0, -1.0, 2.0]])
    one_device = {MAX: jnp.max, MIN: jnp.min}[op]
    expected = jax.grad(lambda x: (one_device(x, axis=0) ** 2).sum())(x)

    def gradient(x):
        return jax.grad(lambda x: (reduce_one(op, x, n=4) ** 2).sum())(x)

    result = on_replicas(gradient, x, n=4)
    # Each of the four replicas has the whole loss, so the gradients are to be averaged.
    np.testing.assert_allclose(result / 4, expected, rtol=1e-6)


def test_an_extremum_may_be_held_fixed(on_replicas):
    def gradient(x):
        return jax.grad(lambda x: (x - lax.stop_gradient(reduce_one(MAX, x))).sum())(x)

    np.testing.assert_array_equal(on_replicas(gradient, values(2, 3)), np.ones((2, 3)))


def test_integers_beside_floats_in_a_gradient(on_replicas):
    def gradient(x):
        def loss(x):
            leaves = [x, jnp.arange(3), jnp.array([True])]
            real, whole, flag = mapped.all_reduce(MAX, leaves, **on(2))
            told = mapped.broadcast(jnp.arange(3), 1, **on(2))
            return (real * whole * told * flag).sum()

        return jax.grad(loss)(x)

    result = on_replicas(gradient, jnp.array([[1.0, 1, 1], [2, 2, 2]]))
    np.testing.assert_array_equal(result, [[0, 0, 0], [0, 2, 8]])


# --- all_gather ----------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3, np.int64(1)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_, np.complex64])
def test_all_gather_joins_in_replica_order(on_replicas, axis, dtype):
    x = np.arange(48).reshape(2, 2, 3, 4).astype(dtype)
    result = on_replicas(lambda x: mapped.all_gather(x, axis, **on(2)), x)
    for replica in range(2):
        np.testing.assert_array_equal(result[replica], np.concatenate(x, axis=axis))


def test_all_gather_of_empty_values_and_keys(on_replicas):
    empty = on_replicas(lambda x: mapped.all_gather(x, 1, **on(2)), jnp.zeros((2, 0, 3)))
    assert empty.shape == (2, 0, 6)
    keys = jax.random.split(jax.random.key(1), (2, 3))
    gathered = on_replicas(lambda k: mapped.all_gather(k, 0, **on(2)), keys)
    expected = jax.random.key_data(keys).reshape(6, -1)
    np.testing.assert_array_equal(jax.random.key_data(gathered)[1], expected)


@pytest.mark.parametrize("axis", [0, -1])
def test_the_gradient_of_all_gather_is_summed_then_cut(on_replicas, axis):
    x = values(2, 3, 2)
    result = on_replicas(weighted(lambda x: mapped.all_gather(x, axis, **on(2))), x)
    whole = cotangents(np.concatenate(x, axis=axis), 2).sum(axis=0)
    np.testing.assert_allclose(result, np.stack(np.split(whole, 2, axis=axis)), rtol=1e-5)


@pytest.mark.parametrize(
    ("axis", "shape", "error", "text"),
    [
        (0, (), InvalidArgumentError, "the value is a scalar"),
        (2, (3, 4), InvalidArgumentError, r"pass a number from -2 to 1"),
        (-3, (3, 4), InvalidArgumentError, r"`axis=-3` is out of range"),
        (1.0, (3,), ArgumentTypeError, r"`axis=1.0` is no integer"),
        (None, (3,), ArgumentTypeError, "`axis=None`"),
        (True, (3,), ArgumentTypeError, "`axis=True`"),
    ],
)
def test_a_bad_axis_is_echoed(on_replicas, axis, shape, error, text):
    x = jnp.ones((2, *shape))
    with pytest.raises(error, match=text):
        on_replicas(lambda x: mapped.all_gather(x, axis, **on(2)), x)
    with pytest.raises(error, match=text):
        on_replicas(lambda x: mapped.reduce_scatter(SUM, x, axis, **on(2)), x)


# --- reduce_scatter ------------------------------------------------------------------------------


@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8])
def test_reduce_scatter_is_the_own_part_of_all_reduce(on_replicas, op, axis, dtype):
    x = (np.arange(2 * 4 * 6) * 7 % 60).reshape(2, 4, 6).astype(dtype)
    result = on_replicas(lambda x: mapped.reduce_scatter(op, x, axis, **on(2)), x)
    expected = np.split(NUMPY[op](x, axis=0), 2, axis=axis)
    np.testing.assert_allclose(result, np.stack(expected), rtol=1e-6)
    assert result.dtype == (np.float32 if op is MEAN else dtype)


@pytest.mark.parametrize("op", [SUM, MEAN])
def test_the_gradient_of_reduce_scatter_is_gathered(on_replicas, op):
    x = values(2, 4)
    result = on_replicas(weighted(lambda x: mapped.reduce_scatter(op, x, 0, **on(2))), x)
    parts = np.split(NUMPY[op](x, axis=0), 2)
    expected = np.concatenate([2 * (1 + i) * part for i, part in enumerate(parts)])
    expected = expected / (2 if op is MEAN else 1)
    np.testing.assert_allclose(result, np.stack([expected] * 2), rtol=1e-5)


@pytest.mark.parametrize("n", [2, 3])
def test_reduce_scatter_over_gloo_exchanges_parts(on_replicas, n):
    x = values(n, 2, 6)

    def both(transport):
        def scattered(x):
            return mapped.reduce_scatter(MEAN, x, 1, transport=transport, **on(n))

        return lambda x: (scattered(x), weighted(scattered)(x))

    expected = on_replicas(both(Transport.MEMORY), x, n=n)
    for one, other in zip(on_replicas(both(Transport.GLOO), x, n=n), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_reduce_scatter_refuses_what_it_cannot_cut(on_replicas):
    with pytest.raises(InvalidArgumentError, match="5 is not divisible by 2 replicas"):
        on_replicas(lambda x: mapped.reduce_scatter(SUM, x, 0, **on(2)), jnp.ones((2, 5)))
    with pytest.raises(ArgumentTypeError, match="bool"):
        on_replicas(lambda x: mapped.reduce_scatter(SUM, x > 0, 0, **on(2)), jnp.ones((2, 4)))
    empty = on_replicas(lambda x: mapped.reduce_scatter(SUM, x, 1, **on(2)), jnp.ones((2, 0, 4)))
    assert empty.shape == (2, 0, 2)


# --- broadcast -----------------------------------------------------------------------------------

ODD = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.25]


@pytest.mark.parametrize("source", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
def test_broadcast_is_exact_to_the_bit(on_replicas, source, dtype):
    x = jnp.asarray([np.roll(ODD, shift) for shift in range(4)]).astype(dtype)
    if dtype == "complex64":
        x = lax.complex(x.real, x.real[::-1])
    result = on_replicas(lambda x: mapped.broadcast(x, source, **on(4)), x, n=4)
    for replica in range(4):
        assert np.asarray(result[replica]).tobytes() == np.asarray(x[source]).tobytes()
    assert result.dtype == x.dtype


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8, np.uint32, np.bool_])
def test_broadcast_of_integers_and_bools(on_replicas, dtype):
    x = np.array([[1, 0, 255, 77], [0, 1, 3, 255]]).astype(dtype)
    for source in range(2):
        result = on_replicas(lambda x, s=source: mapped.broadcast(x, s, **on(2)), x)
        np.testing.assert_array_equal(result, np.stack([x[source]] * 2))


def test_broadcast_of_keys_and_empty_values(on_replicas):
    keys = jax.random.split(jax.random.key(1), 2)
    result = on_replicas(lambda k: mapped.broadcast(k, 1, **on(2)), keys)
    sent, received = (np.asarray(jax.random.key_data(k)) for k in (keys, result))
    np.testing.assert_array_equal(received, [sent[1], sent[1]])
    empty = on_replicas(lambda x: mapped.broadcast(x, 1, **on(2)), jnp.zeros((2, 0), jnp.int8))
    assert (empty.shape, empty.dtype) == ((2, 0), np.int8)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint])
def test_the_gradient_of_broadcast_lands_on_the_source(on_replicas, wrap):
    x = values(2, 3)
    result = on_replicas(weighted(wrap(lambda x: mapped.broadcast(x, 1, **on(2)))), x)
    expected = [np.zeros(3), cotangents(x[1], 2).sum(axis=0)]
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_the_gradient_of_a_complex_broadcast(on_replicas):
    def gradient(x):
        def loss(x):
            return jnp.abs(mapped.broadcast(lax.complex(x, 2 * x), 0, **on(2))).sum()

        return jax.grad(loss)(x)

    result = on_replicas(gradient, jnp.array([[1.0, 2], [3, 4]]))
    np.testing.assert_allclose(result, [[2 * 5**0.5] * 2, [0, 0]], rtol=1e-5)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (2, InvalidArgumentError),
        (-1, InvalidArgumentError),
        (0.0, ArgumentTypeError),
        (None, ArgumentTypeError),
    ],
)
def test_a_source_that_is_no_replica_is_refused(on_replicas, source, error):
    with pytest.raises(error, match=f"`source={source}`") as caught:
        on_replicas(lambda x: mapped.broadcast(x, source, **on(2)), values(2, 3))
    assert "from 0 to 1" in str(caught.value)


def test_under_vmap(on_replicas):
    def step(x):
        def row(row):
            total = reduce_one(SUM, row)
            return total, mapped.broadcast(row, 1, **on(2)), reduce_one(MAX, row)

        return jax.vmap(row)(x)

    x = values(2, 3, 4)
    total, told, best = on_replicas(step, x)
    np.testing.assert_allclose(total[0], x.sum(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(told[0], x[1])
    np.testing.assert_array_equal(best[0], x.max(axis=0))
