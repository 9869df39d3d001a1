from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replicax as rx

EVEN = ([[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]])
STACKED = np.stack([np.array(x) for x in EVEN])


@pytest.fixture
def reduce(runner, strategy):
    """`reduce(op, value, axis)` in each runner; the value is given to the step."""

    def call(op, value, axis):
        return runner(lambda value: strategy.reduce(op, value, axis))(value)

    return call


@pytest.fixture
def even():
    return rx.PerReplica([jnp.array(x) for x in EVEN])


OPS = {
    "sum": np.sum,
    "MEAN": np.mean,
    rx.ReduceOp.MAX: np.max,
    rx.ReduceOp.MIN: np.min,
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), np.int64(1)])
def test_even_components(reduce, even, strategy, op, axis):
    axes = () if axis is None else axis if isinstance(axis, tuple) else (int(axis) % 2,)
    expected = OPS[op](STACKED, axis=(0, *(a + 1 for a in axes)))
    result = reduce(op, even, axis)
    np.testing.assert_allclose(result, expected)
    assert result.sharding.is_fully_replicated
    assert result.sharding.device_set == set(strategy.replica_mesh.devices)


@pytest.mark.parametrize("axis", [1.5, True, "0", [0, 1], (0, 1.5)])
def test_what_is_no_axis_is_refused(reduce, even, axis):
    with pytest.raises(rx.errors.ArgumentTypeError, match="is not an integer"):
        reduce("sum", even, axis)


@pytest.mark.parametrize("axis", [2, -3, (0, 5)])
def test_an_axis_out_of_range_is_refused(reduce, even, axis):
    with pytest.raises(rx.errors.InvalidArgumentError, match="Pass an axis from -2 to 1"):
        reduce("sum", even, axis)


def test_an_axis_of_scalars_is_refused(reduce):
    with pytest.raises(rx.errors.InvalidArgumentError, match="Pass `axis=None`"):
        reduce("sum", rx.PerReplica([1.0, 2.0]), 0)


def test_the_axis_must_be_given(strategy, even):
    with pytest.raises(TypeError, match="axis"):
        strategy.reduce("sum", even)


@pytest.mark.parametrize("op", [None, 3, rx.VariableAggregation.SUM])
def test_what_is_no_op_is_refused(reduce, even, op):
    with pytest.raises(rx.errors.ArgumentTypeError, match="no reduce op"):
        reduce(op, even, None)


@pytest.mark.parametrize(("op", "fix"), [("max", r"rx\.ReduceOp\.MAX"), ("product", "SUM, MEAN")])
def test_an_unknown_op_says_what_is_accepted(reduce, even, op, fix):
    with pytest.raises(rx.errors.InvalidArgumentError, match=fix):
        reduce(op, even, None)


def test_the_mean_of_integers_is_no_integer(reduce):
    mean = reduce("mean", rx.PerReplica([1, 2]), None)
    assert (float(mean), mean.dtype) == (1.5, jnp.float32)
    total = reduce("sum", rx.PerReplica([1, 2]), None)
    assert (int(total), total.dtype) == (3, jnp.int32)


def test_trees(reduce, even):
    result = reduce("sum", {"a": (even, rx.PerReplica([1, 2])), "b": None}, None)
    np.testing.assert_array_equal(result["a"][0], STACKED.sum(0))
    assert int(result["a"][1]) == 3
    assert result["b"] is None


def test_a_per_replica_value_of_trees(reduce):
    value = rx.PerReplica([{"a": 1.0}, {"a": 2.0}])
    assert float(reduce("sum", value, None)["a"]) == 3.0


def test_trees_that_differ_between_replicas_are_refused(reduce):
    value = rx.PerReplica([{"a": 1.0}, {"b": 2.0}])
    with pytest.raises(rx.errors.StructureMismatchError, match=r"0  PyTreeDef\(\{'a'"):
        reduce("sum", value, None)


@pytest.mark.parametrize("value", [[1.0], [1.0, 2.0, 3.0]])
def test_the_wrong_number_of_components_is_refused(reduce, value):
    with pytest.raises(rx.errors.InvalidArgumentError, match="has 2 replicas"):
        reduce("sum", rx.PerReplica(value), None)


# --- uneven and padded components --------------------------------------------------------------


def uneven():
    return rx.PerReplica([jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[8.0, 0.0]])])


ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [8.0, 0.0]])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, (0, 1), -2])
def test_uneven_components_weigh_rows_alike(strategy, op, axis):
    result = strategy.reduce(op, uneven(), axis)
    np.testing.assert_allclose(result, OPS[op](ROWS, axis=(0, 1) if axis == (0, 1) else 0))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, (0, 1)])
def test_padding_does_not_count(reduce, strategy, op, axis):
    (batch,) = strategy.distribute_dataset([ROWS.astype(np.float32)])
    np.testing.assert_allclose(reduce(op, batch, axis), OPS[op](ROWS, axis=axis))


@pytest.mark.parametrize("op", [rx.ReduceOp.MAX, rx.ReduceOp.MIN, "sum", "MEAN"])
def test_padded_integers(reduce, strategy, op):
    (batch,) = strategy.distribute_dataset([np.array([-5, -7, -6])])
    np.testing.assert_allclose(reduce(op, batch, 0), OPS[op](np.array([-5, -7, -6])))


def test_uneven_components_cannot_be_combined_elementwise(strategy):
    with pytest.raises(rx.errors.CollectiveMismatchError, match="Give `axis=0`") as caught:
        strategy.reduce("sum", uneven(), None)
    assert "0  float32  (2, 2)" in str(caught.value)
    assert "1  float32  (1, 2)" in str(caught.value)


def test_a_replica_without_rows(strategy):
    value = rx.PerReplica([jnp.array([1.0, 3.0]), jnp.zeros(0)])
    assert float(strategy.reduce("mean", value, 0)) == 2.0
    assert float(strategy.reduce("sum", value, 0)) == 4.0
    assert float(strategy.reduce(rx.ReduceOp.MAX, value, 0)) == 3.0


def test_the_maximum_of_nothing_is_refused(strategy):
    empty = rx.PerReplica([jnp.zeros(0), jnp.zeros(0)])
    with pytest.raises(rx.errors.InvalidArgumentError, match="without elements"):
        strategy.reduce(rx.ReduceOp.MAX, empty, 0)


@given(st.lists(st.lists(st.integers(-99, 99), max_size=5), min_size=2, max_size=2))
def test_the_mean_over_rows_is_that_of_one_device(components):
    rows = np.concatenate([np.array(x, np.float32) for x in components])
    if not rows.size:
        return
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    value = rx.PerReplica([jnp.array(x, jnp.float32) for x in components])
    mean = strategy.reduce("mean", value, 0)
    np.testing.assert_allclose(mean, rows.mean(), rtol=1e-5, atol=1e-6)


# --- values that are equal on all replicas -----------------------------------------------------


@pytest.mark.parametrize("value", [3.0, np.float32(3.0), jnp.float32(3.0)])
def test_a_bare_value_is_its_own_mean(reduce, value):
    assert float(reduce("mean", value, None)) == 3.0
    assert float(reduce(rx.ReduceOp.MAX, value, None)) == 3.0


def test_the_sum_of_a_bare_value_is_refused(reduce):
    with pytest.raises(rx.errors.InvalidArgumentError, match="once a replica"):
        reduce("sum", 3.0, None)


def test_axes_of_a_bare_value(reduce):
    assert float(reduce("mean", jnp.array([1.0, 3.0]), 0)) == 2.0
    assert float(reduce("mean", 3, None)) == 3.0


def test_the_sum_of_what_run_returned_counts_each_replica(runner, strategy):
    step = runner(lambda: strategy.reduce("sum", strategy.run(lambda: jnp.float32(1.5)), None))
    assert float(step()) == 3.0


def test_a_variable_is_its_own_mean_and_its_sum_is_refused(runner, strategy):
    with strategy.scope():
        w = rx.Variable([1.0, 3.0], name="w")
    np.testing.assert_array_equal(runner(lambda: strategy.reduce("mean", w, None))(), [1, 3])
    assert float(runner(lambda: strategy.reduce("mean", w, 0))()) == 2.0
    with pytest.raises(rx.errors.InvalidArgumentError, match="mirrored value"):
        runner(lambda: strategy.reduce("sum", w, None))()
    with pytest.raises(rx.errors.InvalidArgumentError, match="mirrored value"):
        strategy.reduce("sum", rx.Mirrored(1.0), None)


def test_one_replica_sums_to_itself():
    one = rx.OneDeviceStrategy()
    assert float(one.reduce("sum", 3.0, None)) == 3.0


@pytest.mark.parametrize(
    "value",
    ["text", object(), rx.PerReplica(["a", "b"]), rx.PerReplica([object(), 1.0])],
    ids=["string", "object", "strings", "objects"],
)
def test_what_is_no_array_is_refused(strategy, value):
    with pytest.raises(rx.errors.ArgumentTypeError, match="no array"):
        strategy.reduce("mean", value, None)


def test_results_of_a_step_can_be_reduced_outside(strategy):
    ids = rx.function(
        lambda: strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
    )()
    assert int(strategy.reduce("sum", ids, None)) == 1
    assert jax.tree.leaves(ids)[0].shape == (2,)


# --- what the sum counts ---------------------------------------------------


def test_the_sum_of_a_variables_value_is_refused(runner, strategy):
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
    with pytest.raises(rx.errors.InvalidArgumentError, match="once a replica"):
        runner(lambda: strategy.reduce("sum", w.value, None))()


def test_the_sum_of_what_was_reduced_before_is_refused(runner, strategy):
    def reduced():
        ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
        return strategy.reduce("mean", ids, None)

    with pytest.raises(rx.errors.InvalidArgumentError, match="once a replica"):
        runner(lambda: strategy.reduce("sum", reduced(), None))()
    loss = runner(reduced)()
    with pytest.raises(rx.errors.InvalidArgumentError, match="once a replica"):
        strategy.reduce("sum", loss, None)


def test_the_sum_of_what_a_collective_made_is_refused(runner, strategy):
    def replica_fn():
        return rx.get_replica_context().all_reduce("sum", 1.0)

    with pytest.raises(rx.errors.InvalidArgumentError, match="once a replica"):
        runner(lambda: strategy.reduce("sum", strategy.run(replica_fn), None))()
