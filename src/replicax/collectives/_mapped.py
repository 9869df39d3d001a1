"""Collectives inside a mapped program, over a named axis.

For the compiled runner: these functions are called while a `shard_map` is traced. The gradient
of each is the same collective of the cotangents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.errors import ContextError, InternalError, describe

from ._arithmetic import (
    as_array,
    check_divisible,
    check_reducible,
    check_source,
    finish,
    is_key,
    leaf_names,
    normalised_axis,
    prepare,
    result_dtype,
)
from ._compat import production_order
from ._extremum import extremum
from ._options import CommunicationOptions
from ._packing import plan_packs
from ._reduce_op import ReduceOp
from ._scatter import scatter_narrow, scatter_over_gloo
from ._transport import LIMITS, Transport
from ._wire import WIRE_BYTES, is_narrow, narrow_sum

_THE_VALUE = "the value"


Packs = tuple[tuple[int, ...], ...]
"""How the leaves of one all-reduce travel: numbers of leaves, one tuple a collective."""


def all_reduce(
    op: ReduceOp | str,
    leaves: Sequence[Any],
    *,
    axis_name: str,
    num_replicas: int,
    options: CommunicationOptions | None = None,
    transport: Transport = Transport.MEMORY,
) -> list[jax.Array]:
    """Combines each leaf over all replicas. Context: replica. Collective: yes.

    Small leaves of one dtype travel in one collective, large ones alone. The mean of integers
    is float32 (float64 for 64-bit integers) and does not wrap; a sum of integers wraps as
    `jnp.sum` of the same dtype does. Empty leaves travel not at all. Where the transport adds in
    one order, a leaf in a pack has the bits that it would have alone.

    The gradient of SUM and MEAN is the same collective of the cotangents. The gradient of
    MAX and MIN goes to the replicas whose element won, in equal parts, as in `jnp.max`.

    Args:
        op: The reduce op.
        leaves: Arrays of any shapes and dtypes, `f32[...]`.
        axis_name: Axis of the mapped program.
        num_replicas: Size of this axis.
        options: `bytes_per_pack` and `wire_dtype` are used.
        transport: What carries the collective; it tells what is worth packing.

    Returns:
        The combined leaves, in the same order and shapes, equal on all replicas.

    Raises:
        ArgumentTypeError: A leaf is no array, or `op` has no meaning for its dtype.
        ContextError: The call is outside a program that is mapped over `axis_name`.
    """
    return all_reduce_in_packs(
        op,
        leaves,
        axis_name=axis_name,
        num_replicas=num_replicas,
        options=options,
        transport=transport,
    )[0]


def all_reduce_in_packs(
    op: ReduceOp | str,
    leaves: Sequence[Any],
    *,
    axis_name: str,
    num_replicas: int,
    options: CommunicationOptions | None = None,
    transport: Transport = Transport.MEMORY,
) -> tuple[list[jax.Array], Packs]:
    """Returns what `all_reduce` returns, and how the leaves travel. Collective: yes."""
    op = ReduceOp.parse(op)
    options = options or CommunicationOptions()
    _check_axis(axis_name, num_replicas)
    names = leaf_names(leaves)
    arrays = [as_array(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
    for array, name in zip(arrays, names, strict=True):
        check_reducible(op, array, name)
    full = [number for number, array in enumerate(arrays) if array.size]
    produced = None
    if len(full) > 1:  # Reading the order takes a look at the whole trace.
        produced = production_order([arrays[number] for number in full])
    prepared = [prepare(op, arrays[number], num_replicas) for number in full]
    narrow = [
        is_narrow(options.wire_dtype, op, leaf.dtype, leaf.shape, num_replicas) for leaf in prepared
    ]
    wires = [options.wire_dtype if each else None for each in narrow]
    packs = plan_packs(
        [
            leaf.size * (leaf.dtype.itemsize if wire is None else WIRE_BYTES)
            for leaf, wire in zip(prepared, wires, strict=True)
        ],
        [(leaf.dtype, wire) for leaf, wire in zip(prepared, wires, strict=True)],
        options.bytes_per_pack,
        limits=LIMITS[transport],
        produced=produced,
    )
    totals = _reduce_packed(op, prepared, wires, axis_name, num_replicas, packs)
    by_number = dict(zip(full, totals, strict=True))
    results = [
        finish(op, by_number[number], array.dtype, num_replicas)
        if number in by_number
        else jnp.zeros(array.shape, result_dtype(op, array.dtype))
        for number, array in enumerate(arrays)
    ]
    return results, tuple(tuple(full[leaf] for leaf in pack) for pack in packs)


def all_gather(x: Any, axis: int, *, axis_name: str, num_replicas: int) -> jax.Array:
    """Joins the values of all replicas along an axis. Context: replica. Collective: yes.

    The gradient is the sum of the cotangents, of which each replica gets its own part.

    Args:
        x: `f32[..., L, ...]`, with the same shape on every replica.
        axis: The axis with length `L`. Negative numbers count from the end.
        axis_name: Axis of the mapped program.
        num_replicas: Size of this axis, `R`.

    Returns:
        `f32[..., R * L, ...]`, in replica order, equal on all replicas.

    Raises:
        ArgumentTypeError: `x` is no array, or `axis` is no integer.
        InvalidArgumentError: `x` is a scalar, or `axis` is out of range.
        ContextError: The call is outside a program that is mapped over `axis_name`.
    """
    _check_axis(axis_name, num_replicas)
    array = as_array(x, _THE_VALUE)
    axis = normalised_axis(axis, array, _THE_VALUE)
    if is_key(array):
        gather = partial(all_gather, axis=axis, axis_name=axis_name, num_replicas=num_replicas)
        return _on_key_data(gather, array)
    if not array.size:
        shape = (*array.shape[:axis], array.shape[axis] * num_replicas, *array.shape[axis + 1 :])
        return jnp.zeros(shape, array.dtype)
    gathered: jax.Array = lax.all_gather(array, axis_name, axis=axis, tiled=True)
    return gathered


def reduce_scatter(
    op: ReduceOp | str,
    x: Any,
    axis: int,
    *,
    axis_name: str,
    num_replicas: int,
    options: CommunicationOptions | None = None,
    transport: Transport = Transport.MEMORY,
) -> jax.Array:
    """Combines over all replicas; each keeps its part. Context: replica. Collective: yes.

    The gradient of SUM and MEAN joins the cotangents of all replicas.

    Args:
        op: The reduce op.
        x: `f32[..., L, ...]`, with the same shape on every replica.
        axis: The axis with length `L`, divisible by the number of replicas.
        axis_name: Axis of the mapped program.
        num_replicas: Size of this axis, `R`.
        options: `wire_dtype` is used.
        transport: What carries the collective.

    Returns:
        `f32[..., L / R, ...]`: on replica `i` the part `i` of the combined value.

    Raises:
        ArgumentTypeError: `x` is no array, `axis` is no integer, or `op` has no meaning for it.
        InvalidArgumentError: `axis` is out of range, or its length is not divisible.
        ContextError: The call is outside a program that is mapped over `axis_name`.
    """
    op = ReduceOp.parse(op)
    _check_axis(axis_name, num_replicas)
    array = as_array(x, _THE_VALUE)
    check_reducible(op, array, _THE_VALUE)
    axis = normalised_axis(axis, array, _THE_VALUE)
    check_divisible(array, axis, num_replicas, _THE_VALUE)
    length = array.shape[axis] // num_replicas
    if not array.size:
        shape = (*array.shape[:axis], length, *array.shape[axis + 1 :])
        return jnp.zeros(shape, result_dtype(op, array.dtype))
    if op in {ReduceOp.MAX, ReduceOp.MIN}:
        total = _reduce(op, array, axis_name)
        start = lax.axis_index(axis_name) * length
        return lax.dynamic_slice_in_dim(total, start, length, axis)
    wire = options.wire_dtype if options is not None else None
    if wire is not None and is_narrow(wire, op, array.dtype, array.shape, num_replicas):
        return finish(
            op,
            scatter_narrow(array, axis, wire, axis_name, num_replicas),
            array.dtype,
            num_replicas,
        )
    prepared = prepare(op, array, num_replicas)
    if transport is Transport.GLOO and prepared.ndim == array.ndim:
        total = scatter_over_gloo(prepared, axis, axis_name, num_replicas)
        return finish(op, total, array.dtype, num_replicas)
    cut = axis + prepared.ndim - array.ndim  # `prepare` may put an axis in front.
    total = lax.psum_scatter(prepared, axis_name, scatter_dimension=cut, tiled=True)
    return finish(op, total, array.dtype, num_replicas)


def broadcast(x: Any, source: int, *, axis_name: str, num_replicas: int) -> jax.Array:
    """Gives all replicas the value of one. Context: replica. Collective: yes.

    Exact to the bit, whatever the other replicas hold. The gradient is the sum of the
    cotangents, on the source; it is zero on the others.

    Args:
        x: `f32[...]`, with the same shape on every replica.
        source: Replica id of the value that all get.
        axis_name: Axis of the mapped program.
        num_replicas: Size of this axis.

    Returns:
        The value of the source, `f32[...]`, equal on all replicas.

    Raises:
        ArgumentTypeError: `x` is no array, or `source` is no integer.
        InvalidArgumentError: There is no replica `source`.
        ContextError: The call is outside a program that is mapped over `axis_name`.
    """
    _check_axis(axis_name, num_replicas)
    array = as_array(x, _THE_VALUE)
    source = check_source(source, num_replicas)
    if is_key(array):
        return _on_key_data(partial(_broadcast, axis_name, source), array)
    if not array.size:
        return jnp.zeros(array.shape, array.dtype)
    return _broadcast(axis_name, source, array)


def _check_axis(axis_name: str, num_replicas: int) -> None:
    try:
        size = _psum(1, axis_name)
    except NameError as error:  # jax: unbound axis name.
        raise ContextError(
            describe(
                f"A collective over the axis {axis_name!r} was called outside a mapped program.",
                fix="call it in a function that `strategy.run` runs.",
            )
        ) from error
    if size != num_replicas:
        raise InternalError(
            describe(f"`num_replicas={num_replicas}`, but the axis {axis_name!r} has {size}.")
        )


def _reduce_packed(
    op: ReduceOp,
    leaves: list[jax.Array],
    wires: Sequence[str | None],
    axis_name: str,
    num_replicas: int,
    packs: list[list[int]],
) -> list[jax.Array]:
    """Reduces full leaves, each pack with one collective."""

    def reduced(x: jax.Array, wire: str | None) -> jax.Array:
        if wire is None:
            return _reduce(op, x, axis_name)
        return narrow_sum(x, wire, axis_name, num_replicas)

    totals: list[jax.Array] = list(leaves)
    for pack in packs:
        if len(pack) == 1:
            totals[pack[0]] = reduced(leaves[pack[0]], wires[pack[0]])
            continue
        # Without the barrier XLA fuses the producers of the leaves into the concatenation,
        # and computes them slowly or twice.
        members: list[jax.Array] = lax.optimization_barrier([leaves[number] for number in pack])
        joined = jnp.concatenate([member.ravel() for member in members])
        total = reduced(joined, wires[pack[0]])
        ends = np.cumsum([member.size for member in members])[:-1]
        for number, part in zip(pack, jnp.split(total, ends), strict=True):
            totals[number] = part.reshape(leaves[number].shape)
    return totals


def _reduce(op: ReduceOp, x: jax.Array, axis_name: str) -> jax.Array:
    if op in {ReduceOp.SUM, ReduceOp.MEAN}:
        return _psum(x, axis_name)
    return extremum(op, axis_name, x)


def _select_source(axis_name: str, source: int, x: jax.Array) -> jax.Array:
    """The value of the source, by a sum to which the other replicas add zero."""
    is_source = lax.axis_index(axis_name) == source
    return _psum(jnp.where(is_source, x, jnp.zeros_like(x)), axis_name)


def _psum(x: Any, axis_name: str) -> jax.Array:
    total: jax.Array = lax.psum(x, axis_name)
    return total


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _broadcast(axis_name: str, source: int, x: jax.Array) -> jax.Array:
    """Broadcasts the bits as unsigned integers: a sum of floats loses -0.0 and NaN payloads."""
    if x.dtype == jnp.bool_:
        return _select_source(axis_name, source, x.astype(jnp.uint8)).astype(jnp.bool_)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        real, imag = (_broadcast(axis_name, source, part) for part in (x.real, x.imag))
        return lax.complex(real, imag)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return _select_source(axis_name, source, x)
    bits = lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}"))
    return lax.bitcast_convert_type(_select_source(axis_name, source, bits), x.dtype)


@_broadcast.defjvp
def _broadcast_jvp(
    axis_name: str, source: int, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x,), (tangent,) = primals, tangents
    value = _broadcast(axis_name, source, x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return value, tangent  # The empty tangent of an integer or a bool.
    return value, _select_source(axis_name, source, tangent)


def _on_key_data(transfer: Callable[[jax.Array], jax.Array], keys: jax.Array) -> jax.Array:
    """Applies a transfer to the numbers behind PRNG keys."""
    moved: jax.Array = jax.random.wrap_key_data(
        transfer(jax.random.key_data(keys)), impl=jax.random.key_impl(keys)
    )
    return moved
