from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


def test_local_results_of_components(strategy):
    assert strategy.local_results(rx.PerReplica([1, 5])) == (1, 5)


def test_local_results_of_trees(strategy):
    value = {"a": rx.PerReplica([1, 5]), "b": (rx.PerReplica([2, 6]), 7)}
    assert strategy.local_results(value) == ({"a": 1, "b": (2, 7)}, {"a": 5, "b": (6, 7)})


def test_local_results_lie_on_the_replicas_devices(strategy):
    ids = rx.function(
        lambda: strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
    )()
    components = strategy.local_results(ids)
    assert [int(x) for x in components] == [0, 1]
    assert [next(iter(x.devices())) for x in components] == list(strategy.replica_mesh.devices)


def test_local_results_of_what_is_equal_everywhere(run, strategy):
    same = run(lambda: jnp.ones(1))
    assert len(strategy.local_results(same)) == 2
    with strategy.scope():
        w = rx.Variable(2.0, name="w")
    assert [float(x) for x in strategy.local_results(w)] == [2.0, 2.0]
    placed = rx.Mirrored(strategy.replica_mesh.place_mirrored(jnp.ones(1)))
    assert len(strategy.local_results(placed)) == 2


@pytest.mark.parametrize("value", [3, "text", None, np.float32(1.0)])
def test_local_results_of_a_value_without_replicas_is_that_value(strategy, value):
    assert strategy.local_results(value) == (value,)


def test_local_results_of_a_plain_array_is_that_array(strategy):
    (only,) = strategy.local_results(jnp.ones(1))
    np.testing.assert_array_equal(only, [1])


def test_local_results_have_no_padding(strategy):
    (batch,) = strategy.distribute_dataset([np.arange(3)])
    assert [x.tolist() for x in strategy.local_results(batch)] == [[0, 1], [2]]


def test_local_results_of_another_strategys_value_are_refused(strategy):
    with pytest.raises(rx.errors.InvalidArgumentError, match="has 2 replicas"):
        strategy.local_results(rx.PerReplica([1, 2, 3]))


def test_local_results_inside_a_step(strategy):
    @rx.function
    def step():
        ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
        zero, one = strategy.local_results(ids)
        return one - zero

    assert int(step()) == 1


# --- values from a function --------------------------------------------------------------------


def test_values_from_a_function(strategy):
    def value_fn(context):
        assert context.num_replicas_in_sync == 2
        return {"a": context.replica_id_in_sync_group * 1.5, "b": None}

    value = strategy.distribute_values_from_function(value_fn)
    assert [float(x) for x in value["a"].values] == [0.0, 1.5]
    assert value["b"] is None
    devices = [next(iter(x.devices())) for x in value["a"].values]
    assert devices == list(strategy.replica_mesh.devices)


def test_values_from_a_function_may_differ_in_shape(strategy):
    value = strategy.distribute_values_from_function(
        lambda context: jnp.ones(context.replica_id_in_sync_group + 1)
    )
    assert [x.shape for x in value.values] == [(1,), (2,)]


def test_equal_values_from_a_function_are_per_replica_too(strategy):
    value = strategy.distribute_values_from_function(lambda context: 1.0)
    assert isinstance(value, rx.PerReplica)


def test_values_from_a_function_must_have_one_structure(strategy):
    with pytest.raises(rx.errors.StructureMismatchError, match="different structures") as caught:
        strategy.distribute_values_from_function(
            lambda context: [1.0] * (context.replica_id_in_sync_group + 1)
        )
    assert "0  PyTreeDef([*])" in str(caught.value)
    assert "1  PyTreeDef([*, *])" in str(caught.value)


@pytest.mark.parametrize("fn", [3, None])
def test_values_from_no_function_are_refused(strategy, fn):
    with pytest.raises(rx.errors.ArgumentTypeError, match="takes a function"):
        strategy.distribute_values_from_function(fn)


def test_values_that_are_no_arrays_are_refused(strategy):
    with pytest.raises(rx.errors.ArgumentTypeError, match="no array"):
        strategy.distribute_values_from_function(lambda context: "text")


def test_a_value_context_says_where_by_default():
    assert rx.ValueContext() == rx.ValueContext(0, 1)


# --- tf.distribute's names ---------------------------------------------------------------------


def test_the_names_of_tf_distribute(strategy):
    ids = strategy.experimental_distribute_values_from_function(
        lambda context: context.replica_id_in_sync_group
    )
    assert [int(x) for x in strategy.experimental_local_results(ids)] == [0, 1]
    options = rx.InputOptions(global_batch_size=2)
    batches = strategy.experimental_distribute_dataset(np.arange(4), options)
    assert isinstance(batches, rx.DistributedDataset)
    assert len(list(batches)) == 2
    assert jax.tree.leaves(strategy.run(lambda: 1.0, options=object())) == [1.0]
