"""Digests of the copies of mirrored arrays, made where the copies lie."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Digest = tuple[int, ...]
_COPY = "copy"
# Odd constants whose bits look random: of the golden ratio, and of the finaliser of MurmurHash3.
_GOLDEN, _MIX_1, _MIX_2, _OFFSET = map(np.uint32, (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F))


def digests(arrays: Sequence[Sequence[jax.Array]]) -> list[list[Digest]]:
    """The digests of the copies of each array.

    Copies with equal bits have equal digests. Copies that differ in one 32-bit word have other
    digests for certain; in more, but for one in 2**64 cases.

    Args:
        arrays: For each array its copies, each on its own device.

    Returns:
        For each array one digest a copy. Nothing else comes to the host.
    """
    started = [_start(copies) for copies in arrays]
    return [[tuple(map(int, row)) for row in rows] for rows in jax.device_get(started)]


def _start(copies: Sequence[jax.Array]) -> jax.Array:
    """u32[copies, 2], one row on each device; not awaited."""
    copies = [plain_bits(copy) for copy in copies]
    devices = tuple(next(iter(copy.devices())) for copy in copies)
    mesh, program = _program(devices)
    together = jax.make_array_from_single_device_arrays(
        copies[0].shape, NamedSharding(mesh, PartitionSpec()), copies
    )
    rows: jax.Array = program(together)
    return rows


def plain_bits(copy: jax.Array) -> jax.Array:
    """The array, or the numbers behind random keys."""
    if jnp.issubdtype(copy.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(copy)
    return copy


@functools.lru_cache(maxsize=16)
def _program(devices: tuple[jax.Device, ...]) -> tuple[Mesh, Any]:
    """One program for all copies; JAX keeps an executable for each shape and dtype."""
    mesh = Mesh(np.array(devices, dtype=object), (_COPY,))
    # What goes in is said to be replicated, and each device reads its own copy of it.
    mapped = jax.shard_map(
        lambda copy: _digest(copy)[None],
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(_COPY),
        check_vma=False,
    )
    return mesh, jax.jit(mapped)


def _digest(copy: jax.Array) -> jax.Array:
    """u32[2], two sums of all words, each word weighed by its position."""
    words = _words(copy)
    position = lax.iota(jnp.uint32, words.size)
    # An odd weight loses no bit of a word; mixing is one-to-one for each position.
    weighed = words * (position * _GOLDEN | np.uint32(1))
    mixed = _mix(words ^ (position * _MIX_1 + _OFFSET))
    return jnp.stack([jnp.sum(sums, dtype=jnp.uint32) for sums in (weighed, mixed)])


def _mix(words: jax.Array) -> jax.Array:
    words = (words ^ (words >> np.uint32(16))) * _MIX_1
    words = (words ^ (words >> np.uint32(13))) * _MIX_2
    return words ^ (words >> np.uint32(16))


def _words(copy: jax.Array) -> jax.Array:
    """The bits as a row of u32: one word for each element, two for 64 bits, parts for complex."""
    dtype = copy.dtype
    if dtype == jnp.bool_:
        return copy.ravel().astype(jnp.uint32)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.concatenate([_words(lax.real(copy)), _words(lax.imag(copy))])
    info = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    bits = info(dtype).bits
    if bits == 64:  # noqa: PLR2004
        return lax.bitcast_convert_type(copy, jnp.uint32).ravel()
    unsigned = getattr(jnp, f"uint{bits}")
    return lax.bitcast_convert_type(copy, unsigned).ravel().astype(jnp.uint32)
