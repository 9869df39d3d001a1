"""The replicas of a strategy as a mesh of devices, and how values are laid out on it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "replica"
"""Name of the mesh axis, one position a replica."""


class ReplicaMesh:
    """One device a replica, and the two layouts that a value can have on them.

    A mirrored value is replicated: every device holds all of it. A per-replica value is stacked:
    an array ``[num_replicas, ...]`` whose row ``i`` lives on the device of replica ``i``.

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
        """Whether several replicas share the CPU of this process."""
        return self.num_replicas > 1 and self.devices[0].platform == "cpu"

    def place_mirrored(self, value: Any) -> jax.Array:
        """Copy a value to every replica; the result shares no memory with ``value``."""
        placed: jax.Array = jax.device_put(value, self.mirrored, may_alias=False)
        return placed

    def holds_mirrored(self, value: Any) -> bool:
        """Whether ``value`` is an array that every device of this mesh holds whole."""
        if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
            return False
        sharding = value.sharding
        return sharding.is_fully_replicated and sharding.device_set == set(self.devices)

    def components(self, mirrored: jax.Array) -> tuple[jax.Array, ...]:
        """The copy of each replica, in replica order, each on its own device."""
        by_device = {shard.device: shard.data for shard in mirrored.addressable_shards}
        return tuple(by_device[device] for device in self.devices)

    def rows(self, stacked: jax.Array) -> tuple[jax.Array, ...]:
        """Row ``i`` of an array ``[num_replicas, ...]``, each on its replica's device."""
        by_device = {shard.device: shard.data for shard in stacked.addressable_shards}
        return tuple(by_device[device][0] for device in self.devices)

    def from_rows(self, rows: Sequence[jax.Array]) -> jax.Array:
        """One array ``[num_replicas, ...]`` from its rows, each moved to its replica's device."""
        placed = [
            jax.device_put(row[None], device)
            for row, device in zip(rows, self.devices, strict=True)
        ]
        shape = (self.num_replicas, *rows[0].shape)
        return jax.make_array_from_single_device_arrays(shape, self.stacked, placed)

    def from_components(self, copies: Sequence[jax.Array]) -> jax.Array:
        """One mirrored array from equal copies, each of which is moved to its replica's device."""
        placed = jax.device_put(list(copies), list(self.devices))
        return jax.make_array_from_single_device_arrays(copies[0].shape, self.mirrored, placed)
