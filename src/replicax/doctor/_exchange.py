"""Collectives between devices, with their values looked at and their time taken."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "device"
SMALL, LARGE = 1, 1 << 18
"""Numbers of float32 that each device brings: 4 bytes for latency, 1 MiB for bandwidth."""

_ROUNDS = {SMALL: 15, LARGE: 4}


def pairs_of(count: int, most: int) -> list[tuple[int, int]]:
    """Every pair of that many; where these are too many, each with its next and its opposite.

    Examples:
        >>> pairs_of(3, most=9)
        [(0, 1), (0, 2), (1, 2)]
        >>> len(pairs_of(100, most=9))
        150
    """
    every = list(itertools.combinations(range(count), 2))
    if len(every) <= most:
        return every
    steps = [(i, (i + step) % count) for i in range(count) for step in (1, count // 2)]
    return sorted({(min(pair), max(pair)) for pair in steps})


def of_group(devices: Sequence[jax.Device]) -> dict[str, Any]:
    """An all-reduce over devices, all of this process or one program of several processes."""

    def total(rows: jax.Array) -> jax.Array:
        summed: jax.Array = jax.lax.psum(rows, AXIS)
        return summed

    expected = [sum(range(1, len(devices) + 1))] * len(devices)
    return _measured(devices, total, expected)


def of_pair(devices: Sequence[jax.Device], pair: tuple[int, int]) -> dict[str, Any]:
    """Two of the devices swap what they have, in a program of all devices.

    Where the devices belong to several processes, all of them run it.
    """
    first, second = pair

    def swapped(rows: jax.Array) -> jax.Array:
        got = jax.lax.ppermute(rows, AXIS, [(first, second), (second, first)])
        place = jax.lax.axis_index(AXIS)
        return jnp.where((place == first) | (place == second), got, rows)

    expected = list(range(1, len(devices) + 1))
    expected[first], expected[second] = expected[second], expected[first]
    return _measured(devices, swapped, expected)


def _measured(
    devices: Sequence[jax.Device], call: Callable[[jax.Array], jax.Array], expected: list[int]
) -> dict[str, Any]:
    """Seconds for a small array, bytes a second for a large one, and whether the values are right.

    Seconds are the median, and those of the large array the shortest: what disturbs a measurement
    only makes it longer.
    """
    mesh = Mesh(np.array(devices), (AXIS,))
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    spec = PartitionSpec(AXIS)
    program = jax.jit(
        jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )
    times: dict[int, list[float]] = {}
    is_right = True
    for size, rounds in _ROUNDS.items():
        rows = _rows(devices, sharding, size)
        result = jax.block_until_ready(program(rows))
        is_right &= all(
            bool((np.asarray(shard.data) == expected[shard.index[0].start or 0]).all())
            for shard in result.addressable_shards
        )
        times[size] = []
        for _ in range(rounds):
            began = time.perf_counter()
            jax.block_until_ready(program(rows))
            times[size].append(time.perf_counter() - began)
    seconds = min(times[LARGE])
    return {
        "latency": statistics.median(times[SMALL]),
        "bandwidth": LARGE * 4 / seconds,
        "is_right": is_right,
    }


def _rows(devices: Sequence[jax.Device], sharding: NamedSharding, size: int) -> jax.Array:
    """An array f32[devices, size]: the device at place i holds i + 1."""
    own = [
        jax.device_put(np.full((1, size), place + 1, np.float32), device)
        for place, device in enumerate(devices)
        if device.process_index == jax.process_index()
    ]
    return jax.make_array_from_single_device_arrays((len(devices), size), sharding, own)
