from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicax.collectives import ReduceOp, local, mapped
from replicax.errors import (
    ArgumentTypeError,
    CallSite,
    CollectiveMismatchError,
    InternalError,
    InvalidArgumentError,
)

AXIS = "replica"
SUM, MEAN, MAX, MIN = ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MAX, ReduceOp.MIN


def devices(n):
    return jax.devices()[:n]


def placed(per_replica):
    """Leaves committed to the device of their replica, as the eager runner has them."""
    pairs = zip(per_replica, devices(len(per_replica)), strict=True)
    return [[jax.device_put(leaf, device) for leaf in leaves] for leaves, device in pairs]


def assert_placed(results):
    for leaves, device in zip(results, devices(len(results)), strict=True):
        for leaf in leaves:
            assert leaf.devices() == {device}
            assert leaf.committed


# --- the same numbers as the compiled collectives ------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("op", list(ReduceOp))
def test_all_reduce_equals_mapped(on_replicas, op, n):
    rng = np.random.default_rng(n)
    leaves = [
        rng.normal(size=(n, 3, 4)).astype(np.float32),
        rng.integers(-100, 100, (n, 5)).astype(np.int8),
        rng.integers(-(2**31), 2**31 - 1, (n, 2, 2)).astype(np.int32),
        np.zeros((n, 0, 3), np.float32),
        rng.normal(size=(n,)).astype(np.float32),
    ]
    run = partial(mapped.all_reduce, op, axis_name=AXIS, num_replicas=n)
    expected = on_replicas(lambda *leaves: run(leaves), *leaves, n=n)

    results = local.all_reduce(op, placed([[x[i] for x in leaves] for i in range(n)]), devices(n))

    assert_placed(results)
    for replica, reduced in enumerate(results):
        for result, one in zip(reduced, expected, strict=True):
            assert result.dtype == one.dtype
            assert result.shape == one[replica].shape
            if np.issubdtype(one.dtype, np.integer):
                np.testing.assert_array_equal(result, one[replica])
            else:
                np.testing.assert_allclose(result, one[replica], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("axis", [0, -1])
def test_reduce_scatter_equals_mapped(on_replicas, op, axis):
    x = np.random.default_rng(0).integers(-100, 100, (2, 4, 6)).astype(np.int8)
    run = partial(mapped.reduce_scatter, op, axis=axis, axis_name=AXIS, num_replicas=2)
    expected = on_replicas(lambda x: run(x=x), x)

    results = local.reduce_scatter(op, placed([[x[0]], [x[1]]]), axis, devices(2))

    assert_placed(results)
    for replica in range(2):
        np.testing.assert_array_equal(results[replica][0], expected[replica])
        assert results[replica][0].dtype == expected.dtype


def test_half_precision_keeps_its_dtype():
    leaf = jnp.ones(3, jnp.bfloat16)
    ((mean,), _) = local.all_reduce(MEAN, placed([[leaf], [leaf * 2]]), devices(2))
    assert mean.dtype == jnp.bfloat16
    assert mean.tolist() == [1.5] * 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", [MAX, MIN])
def test_not_a_number_wins_an_extremum_in_both_runners(on_replicas, op, dtype):
    x = jnp.array([[np.nan, 1.0, -np.inf, -2.5], [0.0, -np.nan, np.inf, -1.5]], dtype)
    compiled = on_replicas(
        lambda x: mapped.all_reduce(op, [x], axis_name=AXIS, num_replicas=2)[0], x
    )
    ((eager,), _) = local.all_reduce(op, placed([[x[0]], [x[1]]]), devices(2))
    best = [np.inf, -1.5] if op is MAX else [-np.inf, -2.5]
    for result in (compiled[0], compiled[1], eager):
        np.testing.assert_array_equal(np.asarray(result, np.float32), [np.nan, np.nan, *best])


# --- all_gather ----------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.sampled_from([0, 1, -1, -2]))
def test_uneven_lengths_are_joined(lengths, axis):
    parts = []
    for i, length in enumerate(lengths):
        shape = [2, 2]
        shape[axis] = length
        parts.append(np.full(shape, i, np.int32))

    results = local.all_gather(placed([[x] for x in parts]), axis, devices(len(parts)))

    assert_placed(results)
    for (joined,) in results:
        np.testing.assert_array_equal(joined, np.concatenate(parts, axis=axis))


def test_all_gather_of_keys_bools_and_several_leaves():
    keys = jax.random.split(jax.random.key(0), 4)
    leaves = [[keys[:3], jnp.array([True])], [keys[3:], jnp.array([False, True])]]
    for joined, flags in local.all_gather(placed(leaves), 0, devices(2)):
        np.testing.assert_array_equal(jax.random.key_data(joined), jax.random.key_data(keys))
        assert flags.tolist() == [True, False, True]


# --- broadcast -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [0, 2])
def test_broadcast_is_exact(source):
    odd = np.array([np.nan, np.inf, -0.0, 1.5], np.float32)
    leaves = [[np.roll(odd, i), np.array(i == 1), np.int32(i)] for i in range(3)]
    results = local.broadcast(placed(leaves), source, devices(3))
    assert_placed(results)
    for leaf, flag, number in results:
        assert np.asarray(leaf).tobytes() == np.roll(odd, source).tobytes()
        assert bool(flag) == (source == 1)
        assert int(number) == source


# --- what is refused -----------------------------------------------------------------------------

ONE = np.ones((2, 3), np.float32)
CALLS = {
    "all_reduce": lambda leaves, **kw: local.all_reduce("sum", leaves, devices(len(leaves)), **kw),
    "all_gather": lambda leaves, **kw: local.all_gather(leaves, 0, devices(len(leaves)), **kw),
    "reduce_scatter": lambda leaves, **kw: local.reduce_scatter(
        "sum", leaves, 0, devices(len(leaves)), **kw
    ),
    "broadcast": lambda leaves, **kw: local.broadcast(leaves, 0, devices(len(leaves)), **kw),
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize(
    ("other", "cells"),
    [
        (np.ones((2, 4), np.float32), ["float32", "(2,", "4)"]),
        (np.ones((2, 3), np.int32), ["int32", "(2,", "3)"]),
        (np.ones(2, np.float32), ["float32", "(2,)"]),
    ],
)
def test_replicas_that_differ_are_shown_row_by_row(kind, other, cells):
    sites = [CallSite("step.py", 3, "f"), None, CallSite("step.py", 9, "g")]
    with pytest.raises(
        CollectiveMismatchError, match=f"disagree on leaf 1 of one {kind}"
    ) as caught:
        CALLS[kind]([[ONE, ONE], [ONE, ONE], [ONE, other]], call_sites=sites)
    rows = [line.split() for line in str(caught.value).splitlines()[1:5]]
    assert rows[0] == ["replica", "dtype", "shape", "at"]
    assert rows[1] == ["0", "float32", "(2,", "3)", "step.py:3", "in", "f"]
    assert rows[2][-2:] == ["not", "known"]
    assert rows[3] == ["2", *cells, "step.py:9", "in", "g"]


@pytest.mark.parametrize("kind", CALLS)
def test_other_numbers_of_leaves_and_other_trees_are_refused(kind):
    with pytest.raises(CollectiveMismatchError, match="the number of leaves"):
        CALLS[kind]([[ONE, ONE], [ONE]])
    trees = [jax.tree.structure({"a": 0}), jax.tree.structure({"b": 0})]
    with pytest.raises(CollectiveMismatchError, match="the tree") as caught:
        CALLS[kind]([[ONE], [ONE]], structures=trees)
    assert "{'b': *}" in str(caught.value)


@pytest.mark.parametrize("kind", CALLS)
def test_no_arrays_and_wrong_numbers_of_devices_are_refused(kind):
    with pytest.raises(ArgumentTypeError, match="The value is no array: 'a'"):
        CALLS[kind]([["a"], ["a"]])
    with pytest.raises(InternalError, match="0 replicas"):
        CALLS[kind]([])


def test_lengths_may_differ_on_the_gathered_axis_only():
    with pytest.raises(CollectiveMismatchError, match="on the gathered axis only"):
        local.all_gather([[ONE], [np.ones((2, 4), np.float32)]], 0, devices(2))
    ((joined,), _) = local.all_gather([[ONE], [np.ones((2, 4), np.float32)]], 1, devices(2))
    assert joined.shape == (2, 7)


def test_the_same_checks_as_in_the_compiled_runner():
    with pytest.raises(ArgumentTypeError, match="a sum of bools"):
        local.all_reduce(MEAN, [[np.bool_(1)]] * 2, devices(2))
    with pytest.raises(InvalidArgumentError, match="`reduce_op='max'`"):
        local.all_reduce("max", [[ONE]] * 2, devices(2))
    with pytest.raises(InvalidArgumentError, match="is a scalar"):
        local.all_gather([[np.float32(1)]] * 2, 0, devices(2))
    with pytest.raises(InvalidArgumentError, match="`axis=2` is out of range"):
        local.all_gather([[ONE]] * 2, 2, devices(2))
    with pytest.raises(InvalidArgumentError, match="3 is not divisible by 2"):
        local.reduce_scatter(SUM, [[ONE]] * 2, 1, devices(2))
    with pytest.raises(InvalidArgumentError, match="`source=2`"):
        local.broadcast([[ONE]] * 2, 2, devices(2))
    with pytest.raises(ArgumentTypeError, match="`source=None`"):
        local.broadcast([[ONE]] * 2, None, devices(2))


def test_one_failure_poisons_nothing():
    with pytest.raises(CollectiveMismatchError):
        local.all_reduce(SUM, [[ONE], [ONE[:1]]], devices(2))
    ((total,), _) = local.all_reduce(SUM, [[ONE], [ONE]], devices(2))
    np.testing.assert_array_equal(total, 2 * ONE)
