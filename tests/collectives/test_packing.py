from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax.collectives import LIMITS, PackLimits, Transport, plan_packs
from replicax.errors import InvalidArgumentError

LIMIT = PackLimits(leaf_bytes=1000, pack_bytes=50_000)
LEAVES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 20), st.integers(998, 1002)),
        st.sampled_from(["float32", "int32", "bfloat16"]),
        st.integers(-1, 50),
    ),
    max_size=200,
)


@given(LEAVES, st.sampled_from([0, 0, 1, 7, 30, 10**6]))
def test_every_leaf_travels_once_in_the_order_of_production_within_the_limits(
    leaves, bytes_per_pack
):
    sizes, dtypes, produced = ([leaf[i] for leaf in leaves] for i in range(3))

    packs = plan_packs(sizes, dtypes, bytes_per_pack, limits=LIMIT, produced=produced)

    assert sorted(leaf for pack in packs for leaf in pack) == list(range(len(leaves)))
    when = [(produced[leaf], leaf) for leaf in range(len(leaves))]
    last = [when[pack[-1]] for pack in packs]
    assert last == sorted(last)
    for pack in packs:
        assert [when[leaf] for leaf in pack] == sorted(when[leaf] for leaf in pack)
        assert len({dtypes[leaf] for leaf in pack}) == 1
        if len(pack) > 1:
            assert sum(sizes[leaf] for leaf in pack) <= (bytes_per_pack or LIMIT.pack_bytes)
            assert max(sizes[leaf] for leaf in pack) <= (bytes_per_pack or LIMIT.leaf_bytes)


@given(LEAVES, st.sampled_from([0, 7, 30]))
def test_no_two_neighbouring_packs_of_a_dtype_would_fit_together(leaves, bytes_per_pack):
    """Greedy: a new pack starts only where the next leaf would exceed the limit."""
    sizes, dtypes, produced = ([leaf[i] for leaf in leaves] for i in range(3))
    small, limit = bytes_per_pack or LIMIT.leaf_bytes, bytes_per_pack or LIMIT.pack_bytes

    packs = plan_packs(sizes, dtypes, bytes_per_pack, limits=LIMIT, produced=produced)

    for dtype in set(dtypes):
        open_packs = [p for p in packs if dtypes[p[0]] == dtype and sizes[p[0]] <= small]
        for pack, following in pairwise(open_packs):
            assert sum(sizes[leaf] for leaf in pack) + sizes[following[0]] > limit


@pytest.mark.parametrize("transport", list(Transport), ids=lambda each: each.value)
def test_many_small_leaves_become_a_handful_of_packs(transport):
    limits = LIMITS[transport]
    assert plan_packs([4096] * 200, ["float32"] * 200, limits=limits) == [list(range(200))]
    large = limits.leaf_bytes + 1
    assert plan_packs([8, large, 8], ["float32"] * 3, limits=limits) == [[1], [0, 2]]


def test_a_pack_comes_where_its_last_leaf_does():
    sizes, produced = [8, 8, 2000, 8], [40, 30, 20, 10]
    assert plan_packs(sizes, ["f"] * 4, limits=LIMIT, produced=produced) == [[2], [3, 1, 0]]
    assert plan_packs(sizes, ["f"] * 4, 16, produced=produced) == [[2], [3, 1], [0]]


def test_sockets_pack_larger_leaves_than_memory_does():
    """A message over sockets costs as much as the copy of a large leaf."""
    assert LIMITS[Transport.GLOO].leaf_bytes > LIMITS[Transport.MEMORY].leaf_bytes


def test_bytes_per_pack_overrides():
    assert plan_packs([4, 4, 4, 12, 4], ["f"] * 5, bytes_per_pack=8) == [[0, 1], [3], [2, 4]]
    large = [LIMIT.leaf_bytes + 1] * 2
    assert plan_packs(large, ["f"] * 2, 1 << 30, limits=LIMIT) == [[0, 1]]


@pytest.mark.parametrize(
    ("sizes", "dtypes", "bytes_per_pack"), [([1], [], 0), ([-1], ["f"], 0), ([1], ["f"], -1)]
)
def test_bad_arguments_are_refused(sizes, dtypes, bytes_per_pack):
    with pytest.raises(InvalidArgumentError):
        plan_packs(sizes, dtypes, bytes_per_pack)


def test_as_many_places_as_leaves_are_needed():
    with pytest.raises(InvalidArgumentError, match="2 places"):
        plan_packs([1], ["f"], produced=[1, 2])
