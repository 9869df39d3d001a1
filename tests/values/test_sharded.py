"""Variables of which each replica holds a share."""

from __future__ import annotations

import copy

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.values._sharded import ShardedVariable

WHOLE = np.arange(10, dtype=np.float32).reshape(2, 5)


@pytest.fixture
def variable():
    with rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]).scope():
        return ShardedVariable(WHOLE, shape=(2, 5), name="m")


def test_it_is_cut_into_shares_and_read_as_a_whole(variable):
    assert variable.shape == (2, 5)
    assert not variable.trainable
    assert [share.tolist() for share in variable.values] == [
        [0.0, 1.0, 2.0, 3.0],
        [4.0, 5.0, 6.0, 7.0],
        [8.0, 9.0, 0.0, 0.0],
    ]
    np.testing.assert_array_equal(variable.value, WHOLE)
    variable.assign(WHOLE * 2)
    variable.assign_add(WHOLE)
    np.testing.assert_array_equal(variable.value, WHOLE * 3)
    np.testing.assert_array_equal(copy.deepcopy(variable).value, WHOLE * 3)


def test_a_scalar_is_what_all_elements_start_from():
    with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        variable = ShardedVariable(jnp.float32(0.1), shape=(3, 1))
    np.testing.assert_array_equal(variable.value, np.full((3, 1), np.float32(0.1)))


def test_a_replica_reads_and_writes_its_share(runner, variable):
    strategy = variable.strategy

    def replica_step():
        share = variable.value
        variable.assign_add(share)
        return share.sum()

    def step():
        sums = strategy.run(replica_step)
        before = variable.value
        variable.assign(before + 1)
        return sums, before

    sums, whole = runner(step)()

    assert [float(x) for x in strategy.local_results(sums)] == [6.0, 22.0, 17.0]
    np.testing.assert_array_equal(whole, WHOLE * 2)
    np.testing.assert_array_equal(variable.value, WHOLE * 2 + 1)


def test_a_merge_call_sees_the_whole(variable):
    strategy = variable.strategy

    def merged(strategy):
        variable.assign(variable.value * 2)

    rx.function(lambda: strategy.run(lambda: rx.get_replica_context().merge_call(merged)))()
    np.testing.assert_array_equal(variable.value, WHOLE * 2)


def test_what_does_not_fit_is_refused(variable):
    strategy = variable.strategy
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"share has shape \(4,\)"):
        rx.function(lambda: strategy.run(lambda: variable.assign(jnp.zeros((2, 5)))))()
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"\(2, 5\)"):
        variable.assign(np.zeros(4, np.float32))
    with pytest.raises(rx.errors.UnimplementedError, match="share"):
        variable.at[0].set(1.0)
    with pytest.raises(rx.errors.UnimplementedError, match="share"):
        variable.scatter_add(rx.IndexedSlices(WHOLE[:1], [0]))
