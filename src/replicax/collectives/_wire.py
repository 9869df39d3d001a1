"""float32 arrays that travel in half precision and are added in float32.

What travels are the bits of the half-precision numbers, as uint16: XLA would send bfloat16 as
float32 between CPU devices, and may add in half precision elsewhere. bfloat16 has the range of
float32. float16 has not, so each message is scaled by a power of two, told in one more number, that
brings its largest finite number to between 2**14 and 2**15; nothing overflows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ._reduce_op import ReduceOp

_HALF = {"bfloat16": jnp.bfloat16, "float16": jnp.float16}
_SCALED = frozenset({"float16"})
_LARGEST = 14  # The exponent that the largest number of a message is brought to.
_BIAS, _MANTISSA_BITS = 127, 23  # Of float32.
_MOST_DOUBLINGS = 126  # Further ones have no float32.
WIRE_BYTES = 2


def is_narrow(
    wire_dtype: str | None, op: ReduceOp, dtype: Any, shape: Sequence[int], num_replicas: int
) -> bool:
    """Whether an array travels in half precision. Context: any.

    Scalars do not: they are losses, counts and norms, and save nothing. One replica sends nothing.
    """
    is_sum = op in {ReduceOp.SUM, ReduceOp.MEAN}
    is_large = len(shape) > 0 and str(dtype) == "float32"
    return wire_dtype in _HALF and is_sum and is_large and num_replicas > 1


def rounded(x: jax.Array, wire_dtype: str) -> jax.Array:
    """What the others get of an array that is sent as one message, f32[...]. Context: any."""
    return _decoded(_encoded(x.ravel(), wire_dtype), wire_dtype).reshape(x.shape)


# -- between replicas ------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def narrow_sum(x: jax.Array, wire_dtype: str, axis_name: str, num_replicas: int) -> jax.Array:
    """The sum over all replicas, equal to the bit on all. Context: replica. Collective: yes.

    Each contribution is rounded once. Two replicas exchange their contributions; more of them send
    fewer bytes where each adds up a part and sends it on, rounded once more.

    Args:
        x: f32[...], not empty.
        wire_dtype: `bfloat16` or `float16`.
        axis_name: Axis of the mapped program.
        num_replicas: Size of this axis, above 1.
    """
    if num_replicas == 2:  # noqa: PLR2004 - see above
        gathered = lax.all_gather(_encoded(x.ravel(), wire_dtype), axis_name)
        return _decoded(gathered, wire_dtype).sum(0).reshape(x.shape)
    part = narrow_scatter(in_rows(x, num_replicas), wire_dtype, axis_name)
    gathered = lax.all_gather(_encoded(part, wire_dtype), axis_name)
    return _from_rows(_decoded(gathered, wire_dtype), x.shape)


def _narrow_sum_forwards(
    x: jax.Array, wire_dtype: str, axis_name: str, num_replicas: int
) -> tuple[jax.Array, None]:
    return narrow_sum(x, wire_dtype, axis_name, num_replicas), None


def _narrow_sum_backwards(
    wire_dtype: str, axis_name: str, num_replicas: int, _: None, cotangent: jax.Array
) -> tuple[jax.Array]:
    return (narrow_sum(cotangent, wire_dtype, axis_name, num_replicas),)


narrow_sum.defvjp(_narrow_sum_forwards, _narrow_sum_backwards)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def narrow_scatter(rows: jax.Array, wire_dtype: str, axis_name: str) -> jax.Array:
    """Of the sum over all replicas, row i on replica i. Context: replica. Collective: yes.

    Args:
        rows: f32[R, L].
        wire_dtype: `bfloat16` or `float16`.
        axis_name: Axis of the mapped program, of size `R`.

    Returns:
        f32[L], varying.
    """
    received = lax.all_to_all(_encoded(rows, wire_dtype), axis_name, 0, 0, tiled=True)
    return _decoded(received, wire_dtype).sum(0)


def _narrow_scatter_forwards(
    rows: jax.Array, wire_dtype: str, axis_name: str
) -> tuple[jax.Array, None]:
    return narrow_scatter(rows, wire_dtype, axis_name), None


def _narrow_scatter_backwards(
    _wire_dtype: str, axis_name: str, _: None, cotangent: jax.Array
) -> tuple[jax.Array]:
    joined: jax.Array = lax.all_gather(cotangent, axis_name)
    return (joined,)


narrow_scatter.defvjp(_narrow_scatter_forwards, _narrow_scatter_backwards)


# -- on one device ---------------------------------------------------------------------------------


def narrow_total(parts: Sequence[jax.Array], wire_dtype: str, *, is_joined: bool) -> jax.Array:
    """What `narrow_sum` gives for the contributions of all replicas; or the joined results of
    `narrow_scatter`. Context: cross-replica.

    In float16 a number that is 2**-28 of the largest in its message, or less, may differ: here
    each array is a message.
    """  # noqa: D205
    count = len(parts)
    rows = [in_rows(part, 1 if count == 2 and is_joined else count) for part in parts]  # noqa: PLR2004
    total = functools.reduce(
        jnp.add, [_decoded(_encoded(each, wire_dtype), wire_dtype) for each in rows]
    )
    if count > 2 and is_joined:  # noqa: PLR2004
        total = _decoded(_encoded(total, wire_dtype), wire_dtype)
    return _from_rows(total, parts[0].shape)


# -- messages --------------------------------------------------------------------------------------


def in_rows(x: jax.Array, count: int) -> jax.Array:
    """An array as rows `[count, L]`, with zeros behind its last element."""
    flat = x.ravel()
    length = -(-flat.size // count)
    return jnp.pad(flat, (0, count * length - flat.size)).reshape(count, length)


def _from_rows(rows: jax.Array, shape: Sequence[int]) -> jax.Array:
    size = 1
    for length in shape:
        size *= length
    return rows.ravel()[:size].reshape(tuple(shape))


def _encoded(x: jax.Array, wire_dtype: str) -> jax.Array:
    """Messages along the last axis, f32[..., L], as bits u16[..., L], or one more with a scale."""
    if wire_dtype not in _SCALED:
        bits = _bits(x, wire_dtype)
    else:
        sizes = jnp.where(jnp.isfinite(x), jnp.abs(x), 0.0)
        largest = sizes.max(-1, keepdims=True, initial=0.0)
        exponent = lax.bitcast_convert_type(largest, jnp.int32) >> _MANTISSA_BITS
        scaled = _bits(x * _power(_doublings(exponent)), wire_dtype)
        bits = jnp.concatenate([scaled, exponent.astype(jnp.uint16)], axis=-1)
    sent: jax.Array = lax.optimization_barrier(bits)  # XLA might take the rounding away.
    return sent


def _decoded(bits: jax.Array, wire_dtype: str) -> jax.Array:
    """The inverse of `_encoded`, up to rounding."""
    if wire_dtype not in _SCALED:
        return _numbers(bits, wire_dtype)
    numbers, exponent = bits[..., :-1], bits[..., -1:].astype(jnp.int32)
    return _numbers(numbers, wire_dtype) * _power(-_doublings(exponent))


def _bits(x: jax.Array, wire_dtype: str) -> jax.Array:
    bits: jax.Array = lax.bitcast_convert_type(x.astype(_HALF[wire_dtype]), jnp.uint16)
    return bits


def _numbers(bits: jax.Array, wire_dtype: str) -> jax.Array:
    half: jax.Array = lax.bitcast_convert_type(bits, _HALF[wire_dtype])
    return half.astype(jnp.float32)


def _doublings(exponent: jax.Array) -> jax.Array:
    """How often to double, for the biased exponent of the largest number."""
    return jnp.minimum(_LARGEST + _BIAS - exponent, _MOST_DOUBLINGS)


def _power(exponent: jax.Array) -> jax.Array:
    """2.0**exponent, f32, for exponents of normal numbers."""
    power: jax.Array = lax.bitcast_convert_type((exponent + _BIAS) << _MANTISSA_BITS, jnp.float32)
    return power
