"""The replicas of a strategy as a mesh of devices, and how values are laid out on it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax.cluster import guard
from replicax.collectives import TURNS, Transport

AXIS = "replica"
"""Name of the mesh axis, one position a replica."""


class ReplicaMesh:
    """One device a replica, and the two layouts that a value can have on them.

    A mirrored value is replicated: every device holds all of it. A per-replica value is stacked:
    an array ``[num_replicas, ...]`` whose row ``i`` lives on the device of replica ``i``.

    The devices may belong to several processes. Then arrays are global, each process holds the
    part of its own replicas, and what is told about copies and rows is told about these.

    Args:
        devices: One device a replica, in replica order.
    """

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        self.devices = tuple(devices)

    @property
    def num_replicas(self) -> int:
        """Number of replicas, which is the number of devices."""
        return len(self.devices)

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The mesh of one axis, ``"replica"``."""
        return Mesh(np.array(self.devices, dtype=object), (AXIS,))

    @functools.cached_property
    def mirrored(self) -> NamedSharding:
        """The sharding of a value that every replica holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @functools.cached_property
    def stacked(self) -> NamedSharding:
        """The sharding of an array ``[num_replicas, ...]`` with one row a replica."""
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    @property
    def is_cpu_simulation(self) -> bool:
        """Whether several replicas compute on CPUs, where programs must take turns."""
        return self.num_replicas > 1 and self.devices[0].platform == "cpu"

    @functools.cached_property
    def transport(self) -> Transport:
        """What carries the collectives of compiled programs."""
        return Transport.between(self.devices)

    # -- this process among several ------------------------------------------

    @functools.cached_property
    def local_replicas(self) -> tuple[int, ...]:
        """The numbers of the replicas of this process."""
        here = jax.process_index()
        return tuple(i for i, device in enumerate(self.devices) if device.process_index == here)

    @functools.cached_property
    def local_devices(self) -> tuple[jax.Device, ...]:
        """The devices of the replicas of this process, in replica order."""
        return tuple(self.devices[i] for i in self.local_replicas)

    @property
    def num_local_replicas(self) -> int:
        """Number of replicas of this process."""
        return len(self.local_replicas)

    @functools.cached_property
    def spans_processes(self) -> bool:
        """Whether other processes have replicas as well."""
        return self.num_local_replicas < self.num_replicas

    @property
    def num_processes(self) -> int:
        """Number of processes that have replicas, equally many each."""
        return self.num_replicas // self.num_local_replicas

    @property
    def process_number(self) -> int:
        """Number of this process among those, from 0."""
        return self.local_replicas[0] // self.num_local_replicas

    @functools.cached_property
    def own(self) -> ReplicaMesh:
        """The replicas of this process alone."""
        return ReplicaMesh(self.local_devices) if self.spans_processes else self

    def own_view(self, array: jax.Array) -> jax.Array:
        """The part of this process, without a copy: the whole value, or the rows ``[local, ...]``.

        What is computed with it runs in this process alone.
        """
        if not self.spans_processes or array.is_fully_addressable:
            return array
        if array.is_fully_replicated:
            return self._joined(array.shape, self.own.mirrored, array)
        shape = (self.num_local_replicas, *array.shape[1:])
        return self._joined(shape, self.own.stacked, array)

    @functools.cached_property
    def _to_all(self) -> Any:
        return jax.jit(lambda stacked: stacked, out_shardings=self.mirrored)

    def all_rows(self, stacked: jax.Array) -> jax.Array:
        """An array ``[num_replicas, ...]`` whole, on a device of this process.

        Collective: where the mesh spans processes; in others the array comes back as it is. The
        caller makes sure that all processes are there.
        """
        if not self.spans_processes or stacked.is_fully_addressable:
            return stacked
        if self.is_cpu_simulation:
            TURNS.settle()
        with guard():
            whole: jax.Array = self._to_all(stacked).addressable_data(0)
            return whole.block_until_ready()

    # -- making and taking apart ---------------------------------------------

    def place_mirrored(self, value: Any) -> jax.Array:
        """Copy a value to every replica; the result shares no memory with ``value``.

        Where the mesh spans processes, each gives its own replicas the value that it has.
        """
        if self.spans_processes:
            here = self.own.place_mirrored(own_part(value))
            return self._joined(here.shape, self.mirrored, here)
        placed: jax.Array = jax.device_put(value, self.mirrored, may_alias=False)
        return placed

    def place_stacked(self, rows: Any) -> jax.Array:
        """Copy the rows ``[local, ...]`` of this process's replicas to them."""
        if self.spans_processes:
            if isinstance(rows, jax.Array) and not rows.is_fully_addressable:
                return copied(rows)
            here = self.own.place_stacked(rows)
            return self._joined((self.num_replicas, *here.shape[1:]), self.stacked, here)
        placed: jax.Array = jax.device_put(rows, self.stacked, may_alias=False)
        return placed

    def place_own_rows(self, stacked: Any) -> jax.Array:
        """Put the rows of this process's replicas on them, out of an array of all rows."""
        if isinstance(stacked, jax.Array) and not stacked.is_fully_addressable:
            return stacked
        return self.from_rows([jnp.asarray(stacked[i]) for i in self.local_replicas])

    def _joined(
        self, shape: tuple[int, ...], sharding: NamedSharding, array: jax.Array
    ) -> jax.Array:
        """Another array of what the devices of this process hold of one."""
        by_device = {shard.device: shard.data for shard in array.addressable_shards}
        parts = [by_device[device] for device in self.local_devices]
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)

    def holds_mirrored(self, value: Any) -> bool:
        """Whether ``value`` is an array that every device (of this process) holds whole."""
        if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
            return False
        sharding = value.sharding
        if not sharding.is_fully_replicated:
            return False
        devices = sharding.device_set
        return devices == set(self.devices) or (
            self.spans_processes and devices == set(self.local_devices)
        )

    def components(self, mirrored: jax.Array) -> tuple[jax.Array, ...]:
        """The copy of each replica (of this process), in replica order, each on its own device."""
        by_device = {shard.device: shard.data for shard in mirrored.addressable_shards}
        return tuple(by_device[device] for device in self.local_devices)

    def rows(self, stacked: jax.Array) -> tuple[jax.Array, ...]:
        """The row of each replica (of this process), in replica order, each on its own device."""
        by_device = {shard.device: shard.data for shard in stacked.addressable_shards}
        return tuple(by_device[device][0] for device in self.local_devices)

    def from_rows(self, rows: Sequence[jax.Array]) -> jax.Array:
        """One array ``[num_replicas, ...]`` from the rows of the replicas of this process."""
        placed = [
            jax.device_put(row[None], device)
            for row, device in zip(rows, self.local_devices, strict=True)
        ]
        shape = (self.num_replicas, *rows[0].shape)
        return jax.make_array_from_single_device_arrays(shape, self.stacked, placed)

    def from_components(self, copies: Sequence[jax.Array]) -> jax.Array:
        """One mirrored array from equal copies, one for each replica of this process."""
        placed = jax.device_put(list(copies), list(self.local_devices))
        return jax.make_array_from_single_device_arrays(copies[0].shape, self.mirrored, placed)


def own_part(value: Any) -> Any:
    """A mirrored array of several processes as this process has it; other values as they are."""
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return value
    if value.is_fully_addressable or not value.is_fully_replicated:
        return value
    return value.addressable_data(0)


def placed_by_processes(array: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    """An array on other devices; each process places its part of a value that all have."""
    if sharding.is_fully_addressable:
        placed: jax.Array = jax.device_put(own_part(array), sharding)
        return placed
    if array.sharding == sharding:
        return array
    here = np.asarray(own_part(array))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: here[index])


def copied(array: jax.Array) -> jax.Array:
    """The same array in memory of its own. Runs in this process alone."""
    if array.is_fully_addressable:
        return jnp.array(array, copy=True)
    if len(array.sharding.addressable_devices) == 1:
        # What `jax.device_put` of jax 0.10 spreads over processes has itself as its only shard.
        own = [array.addressable_data(0)]
    else:
        own = [shard.data for shard in array.addressable_shards]
    parts = [jnp.array(part, copy=True) for part in own]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)
