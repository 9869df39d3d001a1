from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax.collectives import PACK_BYTES, SMALL_LEAF_BYTES, plan_packs
from replicax.errors import InvalidArgumentError

LEAVES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 20), st.integers(SMALL_LEAF_BYTES - 2, SMALL_LEAF_BYTES + 2)),
        st.sampled_from(["float32", "int32", "bfloat16"]),
    ),
    max_size=200,
)


@given(LEAVES, st.sampled_from([0, 0, 1, 7, 30, 10**6]))
def test_every_leaf_travels_once_in_order_within_the_limits(leaves, bytes_per_pack):
    sizes, dtypes = [size for size, _ in leaves], [dtype for _, dtype in leaves]

    packs = plan_packs(sizes, dtypes, bytes_per_pack)

    assert sorted(leaf for pack in packs for leaf in pack) == list(range(len(leaves)))
    assert [pack[0] for pack in packs] == sorted(pack[0] for pack in packs)
    for pack in packs:
        assert pack == sorted(pack)
        assert len({dtypes[leaf] for leaf in pack}) == 1
        if len(pack) > 1:
            assert sum(sizes[leaf] for leaf in pack) <= (bytes_per_pack or PACK_BYTES)
            assert max(sizes[leaf] for leaf in pack) <= (bytes_per_pack or SMALL_LEAF_BYTES)


@given(LEAVES, st.sampled_from([0, 7, 30]))
def test_no_two_neighbouring_packs_of_a_dtype_would_fit_together(leaves, bytes_per_pack):
    """Greedy: a new pack starts only where the next leaf would exceed the limit."""
    sizes, dtypes = [size for size, _ in leaves], [dtype for _, dtype in leaves]
    small, limit = bytes_per_pack or SMALL_LEAF_BYTES, bytes_per_pack or PACK_BYTES

    packs = plan_packs(sizes, dtypes, bytes_per_pack)

    for dtype in set(dtypes):
        open_packs = [p for p in packs if dtypes[p[0]] == dtype and sizes[p[0]] <= small]
        for pack, following in pairwise(open_packs):
            assert sum(sizes[leaf] for leaf in pack) + sizes[following[0]] > limit


def test_many_small_leaves_become_a_handful_of_packs():
    assert plan_packs([4096] * 200, ["float32"] * 200) == [list(range(200))]
    assert len(plan_packs([SMALL_LEAF_BYTES] * 200, ["float32"] * 200)) == 4


def test_large_leaves_travel_alone():
    sizes = [8, SMALL_LEAF_BYTES + 1, 8, PACK_BYTES * 10]
    assert plan_packs(sizes, ["float32"] * 4) == [[0, 2], [1], [3]]


def test_bytes_per_pack_overrides():
    assert plan_packs([4, 4, 4, 12, 4], ["f"] * 5, bytes_per_pack=8) == [[0, 1], [2, 4], [3]]
    large = [SMALL_LEAF_BYTES + 1] * 2
    assert plan_packs(large, ["f"] * 2, bytes_per_pack=1 << 30) == [[0, 1]]


@pytest.mark.parametrize(
    ("sizes", "dtypes", "bytes_per_pack"), [([1], [], 0), ([-1], ["f"], 0), ([1], ["f"], -1)]
)
def test_bad_arguments_are_refused(sizes, dtypes, bytes_per_pack):
    with pytest.raises(InvalidArgumentError):
        plan_packs(sizes, dtypes, bytes_per_pack)
