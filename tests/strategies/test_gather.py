from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

A, B = np.arange(4.0).reshape(2, 2), np.arange(4.0, 8.0).reshape(2, 2)


@pytest.fixture
def gather(runner, strategy):
    def call(value, axis):
        return runner(lambda value: strategy.gather(value, axis))(value)

    return call


@pytest.fixture
def even():
    return rx.PerReplica([jnp.array(A), jnp.array(B)])


@pytest.mark.parametrize("axis", [0, 1, -1, -2, np.int32(0)])
def test_even_components(gather, even, strategy, axis):
    result = gather(even, axis)
    np.testing.assert_array_equal(result, np.concatenate([A, B], axis=axis))
    assert result.sharding.device_set == set(strategy.replica_mesh.devices)


def test_trees(gather, even):
    np.testing.assert_array_equal(gather({"a": even}, 0)["a"], np.concatenate([A, B]))


def test_a_per_replica_value_of_trees(gather):
    value = rx.PerReplica([{"a": jnp.ones(1)}, {"a": jnp.zeros(1)}])
    np.testing.assert_array_equal(gather(value, 0)["a"], [1, 0])


def test_uneven_components(strategy):
    value = rx.PerReplica([jnp.array([1, 2]), jnp.array([3])])
    np.testing.assert_array_equal(strategy.gather(value, 0), [1, 2, 3])


def test_padding_is_left_out(strategy):
    (batch,) = strategy.distribute_dataset([np.arange(3)])
    np.testing.assert_array_equal(strategy.gather(batch, 0), [0, 1, 2])


def test_padding_cannot_be_left_out_while_tracing(strategy):
    (batch,) = strategy.distribute_dataset([np.arange(3)])
    with pytest.raises(rx.errors.ContextError, match=r"outside of `rx\.function`"):
        rx.function(lambda batch: strategy.gather(batch, 0))(batch)


@pytest.mark.parametrize("shape", [(1, 3), (1,)])
def test_shapes_that_differ_elsewhere_are_refused(strategy, shape):
    value = rx.PerReplica([jnp.ones((1, 2)), jnp.ones(shape)])
    with pytest.raises(rx.errors.CollectiveMismatchError, match="Only the gathered axis") as caught:
        strategy.gather(value, 0)
    assert "0  float32  (1, 2)" in str(caught.value)


def test_scalars_are_refused(gather):
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"x\[None\]"):
        gather(rx.PerReplica([1.0, 2.0]), 0)


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_out_of_range_is_refused(gather, even, axis):
    with pytest.raises(rx.errors.InvalidArgumentError, match="from -2 to 1"):
        gather(even, axis)


@pytest.mark.parametrize("axis", [None, (0,), True, 0.0, "0"])
def test_what_is_no_axis_is_refused(gather, even, axis):
    with pytest.raises(rx.errors.ArgumentTypeError, match="is not an integer"):
        gather(even, axis)


def test_the_wrong_number_of_components_is_refused(gather):
    with pytest.raises(rx.errors.InvalidArgumentError, match="has 2 replicas"):
        gather(rx.PerReplica([jnp.ones(1)] * 3), 0)


def test_a_bare_value_is_returned(gather, strategy):
    np.testing.assert_array_equal(gather(jnp.ones(3), 0), [1, 1, 1])
    assert strategy.gather("text", 0) == "text"


def test_what_is_no_array_is_refused(strategy):
    with pytest.raises(rx.errors.ArgumentTypeError, match="no array"):
        strategy.gather(rx.PerReplica(["a", "b"]), 0)


def test_a_variable_that_a_replica_returns_is_no_row(runner, strategy):
    """It has as many elements as the replica has rows, and is gathered as it is all the same."""
    with strategy.scope():
        w = rx.Variable([1.0, 2.0], name="w")
    step = runner(lambda x: strategy.run(lambda x: w.value, args=(x,)))
    (batch,) = strategy.distribute_dataset([np.arange(4.0)])
    assert strategy.gather(step(batch), axis=0).tolist() == [1, 2]
