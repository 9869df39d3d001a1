"""The strategy, values and variables between steps."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import Job, check, mine, numbers, raised
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import replicax as rx
from replicax.cluster import gather
from replicax.cluster._gather import _STORE
from replicax.values._mesh import copied

# --- the strategy ----------------------------------------------------------------------------


@check
def facts(job: Job) -> Any:
    strategy = job.strategy
    assert strategy.is_chief == (job.rank == 0)
    assert strategy.worker_count == 2
    assert (strategy.cluster_resolver.rank, strategy.cluster_resolver.world_size) == (job.rank, 2)
    assert strategy.num_replicas_in_sync == 4
    assert strategy.replica_mesh.local_replicas == tuple(mine(job, [0, 1, 2, 3]))
    assert all(device.process_index == job.rank for device in strategy.replica_mesh.local_devices)
    assert len(set(strategy.extended.worker_devices)) == 4
    return strategy.name


@check
def messages_in_the_store_of_jax(job: Job) -> Any:
    """What workers use that were started by something else."""
    for number in range(3):
        assert _STORE.gather("test", [number, job.rank], 60.0) == [[number, 0], [number, 1]]
    if job.rank == 0:
        with pytest.raises(rx.errors.CollectiveTimeoutError) as caught:
            _STORE.gather("alone", 0, 0.2)
        assert "Worker 1 did not come to the meeting 'alone'" in str(caught.value)
    return gather("test", 7)


# --- values between steps --------------------------------------------------------------------


@check
def a_copy_where_each_worker_has_one_device(job: Job) -> Any:
    """Of an array that `device_put` spread over the workers, as Keras does with first values."""
    devices = np.array(jax.devices()).reshape(2, -1)[:, 0]
    assert [device.process_index for device in devices] == [0, 1]
    sharding = NamedSharding(Mesh(devices, ("replica",)), PartitionSpec())
    array = jax.device_put(jnp.arange(3.0), sharding)
    again = copied(array)
    assert again.sharding == sharding
    own = again.addressable_data(0)
    assert own.devices() == {devices[job.rank]}
    return numbers(own)


@check
def per_replica_values(job: Job) -> Any:
    strategy, ids = job.strategy, job.ids
    assert [numbers(x) for x in ids.values] == mine(job, [[i, i] for i in range(4)])
    assert strategy.local_results(ids)[0].devices() == {strategy.replica_mesh.local_devices[0]}
    assert numbers(strategy.reduce("sum", ids, axis=None)) == [6, 6]
    assert float(strategy.reduce("mean", ids, axis=0)) == 1.5
    assert float(strategy.reduce(rx.ReduceOp.MAX, ids, axis=0)) == 3
    joined = strategy.gather({"x": ids}, axis=0)["x"]
    assert numbers(joined) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert strategy.local_results(joined)[1].devices() == {strategy.replica_mesh.local_devices[1]}
    return numbers(joined)


@check
def values_of_different_lengths(job: Job) -> Any:
    strategy = job.strategy
    lengths = mine(job, [0, 1, 2, 5])
    ragged = rx.PerReplica([jnp.arange(n, dtype=jnp.bfloat16) for n in lengths])
    assert float(strategy.reduce("sum", ragged, axis=0)) == 1 + 10
    assert float(strategy.reduce("mean", ragged, axis=0)) == 11 / 8
    return numbers(strategy.gather(ragged, axis=0).astype(jnp.float32))


@check
def random_keys_are_gathered(job: Job) -> Any:
    keys = rx.PerReplica([jax.random.key(i)[None] for i in mine(job, [0, 1, 2, 3])])
    return numbers(jax.random.key_data(job.strategy.gather(keys, axis=0)))


@check
def sparse_rows_are_joined(job: Job) -> Any:
    ids = mine(job, [0, 1, 2, 3])
    slices = rx.IndexedSlices(
        rx.PerReplica([jnp.full((1, 2), float(i)) for i in ids]),
        rx.PerReplica([jnp.array([i % 2]) for i in ids]),
        dense_shape=(2, 2),
    )
    joined = job.strategy.reduce("sum", slices, axis=None)
    return numbers(joined.to_dense(2))


@check
def workers_in_different_calls_are_told(job: Job) -> Any:
    strategy, ids = job.strategy, job.ids
    text = raised(
        rx.errors.CollectiveMismatchError,
        lambda: strategy.gather(ids, axis=0) if job.rank else strategy.reduce("sum", ids, axis=0),
    )
    assert "strategy.reduce" in text
    assert "strategy.gather" in text
    other = raised(
        rx.errors.CollectiveMismatchError,
        lambda: strategy.reduce("mean" if job.rank else "sum", ids, axis=None),
    )
    assert "MEAN" in other
    same = raised(
        rx.errors.CollectiveMismatchError,
        lambda: strategy.reduce("mean", jnp.float32(job.rank), axis=None),
    )
    return [text, other, same]


# --- variables between steps -----------------------------------------------------------------


@check
def a_variable_starts_from_the_value_of_worker_0(job: Job) -> Any:
    v = job.variable(np.full(3, 5.0 + job.rank, np.float32), name="v")
    assert numbers(v.value) == [5, 5, 5]
    assert v.value.is_fully_addressable
    assert len(v.values) == 2
    key = job.variable(jax.random.key(7 + job.rank), name="key")
    return [numbers(v), numbers(jax.random.key_data(key.value))]


@check
def workers_that_create_different_variables_are_told(job: Job) -> Any:
    return raised(
        rx.errors.CollectiveMismatchError,
        lambda: job.variable(np.zeros(2 + job.rank, np.float32), name="v"),
    )


@check
def writes_across_replicas(job: Job) -> Any:
    v = job.variable([1.0, 2.0, 3.0], name="v")
    before = v.value
    v.assign_add([1.0, 1.0, 1.0])
    v.at[0].set(9.0)
    v.scatter_add(rx.IndexedSlices(jnp.array([1.0]), jnp.array([2])))
    assert numbers(before) == [1, 2, 3]
    text = raised(rx.errors.VaryingWriteError, lambda: v.assign(np.full(3, job.rank, np.float32)))
    raised(rx.errors.VaryingWriteError, lambda: v.at[job.rank].set(0.0))
    twin = copy.deepcopy(v)
    v.assign_sub(twin.value)
    assert numbers(v) == [0, 0, 0]
    return [numbers(twin), text]


@check
def variables_with_a_value_of_each_replica(job: Job) -> Any:
    found = []
    for aggregation in ("sum", "mean", "only_first_replica"):
        v = job.variable(0.0, synchronization="on_read", aggregation=aggregation, name="v")
        v.assign(rx.PerReplica(mine(job, [4.0, 1.0, 2.0, 5.0])))
        assert [float(x) for x in v.values] == mine(job, [4.0, 1.0, 2.0, 5.0])
        found.append(float(v))
    assert found == [12, 3, 4]
    count = job.variable(0, synchronization="on_read", aggregation="sum", name="count")
    count.assign(10)
    assert [int(x) for x in job.strategy.local_results(count)] == mine(job, [3, 3, 2, 2])
    free = job.variable([0.0], synchronization="on_read", name="free")
    free.assign(rx.PerReplica([jnp.array([x]) for x in mine(job, [1.0, 2.0, 3.0, 4.0])]))
    free.assign_add([1.0])
    return [found, int(count), numbers(job.strategy.gather(free, axis=0))]


@check
def copies_are_compared_over_workers(job: Job) -> Any:
    v = job.variable([1.0, 2.0], name="v")
    rx.check_replicas_equal({"v": v, "local": jnp.ones(2)})
    parts = [jnp.full(2, 1.0 + (i == 3)) for i in mine(job, [0, 1, 2, 3])]
    broken = job.strategy.replica_mesh.from_components(parts)
    text = raised(rx.errors.ReplicaDivergenceError, lambda: rx.check_replicas_equal([v, broken]))
    assert "1 of 2 mirrored arrays" in text
    assert "float32[2]" in text
    return text.splitlines()[0]
