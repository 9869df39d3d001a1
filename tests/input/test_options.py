from __future__ import annotations

import numpy as np
import pytest

import replicax as rx


def test_defaults():
    assert rx.InputOptions() == rx.InputOptions(global_batch_size=None, remainder="mask")


@pytest.mark.parametrize("size", [1, 32, np.int64(8)])
def test_sizes(size):
    assert rx.InputOptions(global_batch_size=size).global_batch_size == size


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "8"])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(rx.errors.InvalidArgumentError, match="not a positive integer") as caught:
        rx.InputOptions(global_batch_size=size)
    assert repr(size) in str(caught.value)


@pytest.mark.parametrize("remainder", ["pad", None, ["mask"]])
def test_an_unknown_remainder_lists_the_known_ones(remainder):
    with pytest.raises(rx.errors.InvalidArgumentError, match="'mask', 'drop', 'error'"):
        rx.InputOptions(remainder=remainder)


@pytest.mark.parametrize("policy", list(rx.input.AutoShardPolicy))
def test_policies_by_name(policy):
    assert rx.InputOptions(policy=policy.name.lower()) == rx.InputOptions(policy=policy)


@pytest.mark.parametrize("policy", ["rows", None, 2])
def test_an_unknown_policy_lists_the_known_ones(policy):
    with pytest.raises(rx.errors.InvalidArgumentError, match="'off', 'auto', 'file', 'data'"):
        rx.InputOptions(policy=policy)


def test_an_unknown_replication_mode_lists_the_known_ones():
    with pytest.raises(rx.errors.InvalidArgumentError, match="'per_worker', 'per_replica'"):
        rx.InputOptions(replication_mode="both")


@pytest.mark.parametrize("prefetch", [-1, 1.5, True, None, "2"])
def test_what_is_no_prefetch_is_refused(prefetch):
    with pytest.raises(rx.errors.InvalidArgumentError, match="`prefetch`") as caught:
        rx.InputOptions(prefetch=prefetch)
    assert repr(prefetch) in str(caught.value)
