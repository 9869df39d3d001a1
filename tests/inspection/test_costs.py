"""The model of what a collective takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import replicax as rx

REPLICAS = st.integers(1, 4096)
PRIMITIVES = st.sampled_from(["psum", "all_gather", "reduce_scatter", "all_to_all", "ppermute"])


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather_of_the_shares():
    fabric = rx.Fabric(bandwidth=1e9, latency=1e-6)

    for count in (2, 8, 1024):
        parts = fabric.seconds("reduce_scatter", 1e6, replicas=count)
        parts += fabric.seconds("all_gather", 1e6 / count, replicas=count)
        assert fabric.seconds("psum", 1e6, replicas=count) == pytest.approx(parts)


@given(
    REPLICAS, st.sampled_from(["psum", "all_gather", "reduce_scatter", "all_to_all", "ppermute"])
)
def test_more_bytes_take_longer_and_one_replica_sends_nothing(count, primitive):
    fabric = rx.Fabric(bandwidth=1e9, latency=1e-6)

    few, many = (fabric.seconds(primitive, size, replicas=count) for size in (1e3, 1e6))

    assert few == many == 0 if count == 1 else 0 < few < many


@pytest.mark.parametrize(
    "wrong", [{"bandwidth": 0}, {"latency": -1e-6}, {"bandwidth": float("nan")}]
)
def test_a_network_that_cannot_be_is_refused(wrong):
    [name] = wrong
    with pytest.raises(rx.errors.InvalidArgumentError, match=name):
        rx.Fabric(**wrong)
