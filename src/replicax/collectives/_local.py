"""Collectives on explicit lists, one entry a replica, for the eager runner.

The values of all replicas are brought to the first device, combined there by one compiled
program a structure, and the result is committed to the device of each replica. The numbers are
those of the compiled collectives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.errors import (
    CallSite,
    CollectiveMismatchError,
    InternalError,
    Table,
    describe,
)

from ._arithmetic import (
    as_array,
    check_divisible,
    check_reducible,
    check_source,
    finish,
    leaf_names,
    normalised_axis,
    prepare,
)
from ._reduce_op import ReduceOp
from ._wire import is_narrow, narrow_total

Leaves = list[jax.Array]
CallSites = Sequence[CallSite | None] | None
Structures = Sequence[object] | None
Travel = tuple[str | None, bool]
"""In what dtype float32 arrays travel, and whether all get the whole sum, or each a part."""

_JOINED, _CUT = True, False


def all_reduce(
    op: ReduceOp | str,
    per_replica: Sequence[Sequence[Any]],
    devices: Sequence[jax.Device],
    *,
    wire_dtype: str | None = None,
    structures: Structures = None,
    call_sites: CallSites = None,
) -> list[Leaves]:
    """Combines each leaf over all replicas. Context: cross-replica.

    Args:
        op: The reduce op.
        per_replica: The leaves of each replica, equal in number, dtypes and shapes.
        devices: The device of each replica.
        wire_dtype: What float32 arrays are rounded to, as on their way in compiled steps.
        structures: The tree that the leaves come from, a replica, to be compared.
        call_sites: The line of user code of each replica, for messages.

    Returns:
        The combined leaves for each replica, committed to its device.

    Raises:
        ArgumentTypeError: A leaf is no array, or `op` has no meaning for its dtype.
        CollectiveMismatchError: The replicas differ in trees, dtypes or shapes.

    Examples:
        >>> devices = jax.devices()[:2]
        >>> total, _ = all_reduce("sum", [[jnp.array([1, 2])], [jnp.array([10, 20])]], devices)
        >>> print(total[0])
        [11 22]
    """
    op = ReduceOp.parse(op)
    replicas = _checked("all_reduce", per_replica, devices, structures, call_sites)
    for leaf, name in zip(replicas[0], leaf_names(replicas[0]), strict=True):
        check_reducible(op, leaf, name)
    return _to_all(
        _combine(op, (wire_dtype, _JOINED), jax.device_put(replicas, devices[0])), devices
    )


def all_gather(
    per_replica: Sequence[Sequence[Any]],
    axis: int,
    devices: Sequence[jax.Device],
    *,
    structures: Structures = None,
    call_sites: CallSites = None,
) -> list[Leaves]:
    """Joins each leaf of all replicas along an axis. Context: cross-replica.

    Args:
        per_replica: The leaves of each replica. Lengths may differ on `axis`, and only there.
        axis: The axis to join. Negative numbers count from the end.
        devices: The device of each replica.
        structures: The tree that the leaves come from, a replica, to be compared.
        call_sites: The line of user code of each replica, for messages.

    Returns:
        The joined leaves for each replica, in replica order, committed to its device.

    Raises:
        ArgumentTypeError: A leaf is no array, or `axis` is no integer.
        CollectiveMismatchError: The replicas differ in trees, dtypes, or shapes beside `axis`.
        InvalidArgumentError: A leaf is a scalar, or `axis` is out of range.

    Examples:
        >>> joined, _ = all_gather([[jnp.ones(2)], [jnp.zeros(1)]], 0, jax.devices()[:2])
        >>> print(joined[0])
        [1. 1. 0.]
    """
    replicas = _checked("all_gather", per_replica, devices, structures, call_sites, axis=axis)
    first = replicas[0]
    names = leaf_names(first)
    axes = [normalised_axis(axis, leaf, name) for leaf, name in zip(first, names, strict=True)]
    gathered = jax.device_put(replicas, devices[0])
    joined = [
        jnp.concatenate(parts, axis=leaf_axis)
        for leaf_axis, parts in zip(axes, zip(*gathered, strict=True), strict=True)
    ]
    return _to_all(joined, devices)


def reduce_scatter(
    op: ReduceOp | str,
    per_replica: Sequence[Sequence[Any]],
    axis: int,
    devices: Sequence[jax.Device],
    *,
    wire_dtype: str | None = None,
    structures: Structures = None,
    call_sites: CallSites = None,
) -> list[Leaves]:
    """Combines each leaf; each replica gets its part. Context: cross-replica.

    Args:
        op: The reduce op.
        per_replica: The leaves of each replica, equal in number, dtypes and shapes.
        axis: The axis to cut, its length divisible by the number of replicas.
        devices: The device of each replica.
        wire_dtype: What float32 arrays are rounded to, as on their way in compiled steps.
        structures: The tree that the leaves come from, a replica, to be compared.
        call_sites: The line of user code of each replica, for messages.

    Returns:
        For replica `i` the part `i` of each combined leaf, committed to its device.

    Raises:
        ArgumentTypeError: A leaf is no array, or `op` has no meaning for its dtype.
        CollectiveMismatchError: The replicas differ in trees, dtypes or shapes.
        InvalidArgumentError: `axis` is out of range, or its length is not divisible.

    Examples:
        >>> parts = reduce_scatter("sum", [[jnp.arange(2)], [jnp.arange(2)]], 0, jax.devices()[:2])
        >>> print(parts[0][0], parts[1][0])
        [0] [2]
    """
    op = ReduceOp.parse(op)
    replicas = _checked("reduce_scatter", per_replica, devices, structures, call_sites)
    count = len(devices)
    axes = []
    for leaf, name in zip(replicas[0], leaf_names(replicas[0]), strict=True):
        check_reducible(op, leaf, name)
        axes.append(normalised_axis(axis, leaf, name))
        check_divisible(leaf, axes[-1], count, name)
    totals = _combine(op, (wire_dtype, _CUT), jax.device_put(replicas, devices[0]))
    results = []
    for replica, device in enumerate(devices):
        parts = []
        for total, leaf_axis in zip(totals, axes, strict=True):
            length = total.shape[leaf_axis] // count
            start = replica * length
            parts.append(lax.slice_in_dim(total, start, start + length, axis=leaf_axis))
        results.append(jax.device_put(parts, device))
    return results


def broadcast(
    per_replica: Sequence[Sequence[Any]],
    source: int,
    devices: Sequence[jax.Device],
    *,
    structures: Structures = None,
    call_sites: CallSites = None,
) -> list[Leaves]:
    """Gives all replicas the leaves of one. Context: cross-replica.

    Args:
        per_replica: The leaves of each replica, equal in number, dtypes and shapes.
        source: Replica id of the leaves that all get.
        devices: The device of each replica.
        structures: The tree that the leaves come from, a replica, to be compared.
        call_sites: The line of user code of each replica, for messages.

    Returns:
        The leaves of the source for each replica, committed to its device.

    Raises:
        ArgumentTypeError: A leaf is no array, or `source` is no integer.
        CollectiveMismatchError: The replicas differ in trees, dtypes or shapes.
        InvalidArgumentError: There is no replica `source`.

    Examples:
        >>> first, _ = broadcast([[jnp.ones(2)], [jnp.zeros(2)]], 1, jax.devices()[:2])
        >>> print(first[0])
        [0. 0.]
    """
    replicas = _checked("broadcast", per_replica, devices, structures, call_sites)
    return _to_all(replicas[check_source(source, len(devices))], devices)


_PAIRWISE: dict[ReduceOp, Callable[[jax.Array, jax.Array], jax.Array]] = {
    ReduceOp.SUM: jnp.add,
    ReduceOp.MEAN: jnp.add,
    ReduceOp.MAX: jnp.maximum,
    ReduceOp.MIN: jnp.minimum,
}


@partial(jax.jit, static_argnums=(0, 1))
def _combine(op: ReduceOp, travel: Travel, replicas: list[Leaves]) -> Leaves:
    """Combines the leaves of all replicas in replica order, as one program."""
    wire_dtype, is_joined = travel
    count = len(replicas)
    results = []
    for parts in zip(*replicas, strict=True):
        first = parts[0]
        if wire_dtype is not None and is_narrow(wire_dtype, op, first.dtype, first.shape, count):
            total = narrow_total(parts, wire_dtype, is_joined=is_joined)
            results.append(finish(op, total, first.dtype, count))
            continue
        prepared = [prepare(op, part, count) for part in parts]
        total = functools.reduce(_PAIRWISE[op], prepared)
        results.append(finish(op, total, parts[0].dtype, count))
    return results


def _to_all(leaves: Leaves, devices: Sequence[jax.Device]) -> list[Leaves]:
    return [jax.device_put(leaves, device) for device in devices]


def _checked(
    kind: str,
    per_replica: Sequence[Sequence[Any]],
    devices: Sequence[jax.Device],
    structures: Structures,
    call_sites: CallSites,
    axis: int | None = None,
) -> list[Leaves]:
    """Returns the leaves as arrays, or raises an error that shows how the replicas differ.

    Args:
        kind: Name of the collective.
        per_replica: The leaves of each replica.
        devices: The device of each replica.
        structures: The tree of each replica.
        call_sites: The line of user code of each replica.
        axis: The one axis on which the lengths may differ.
    """
    if not per_replica or len(per_replica) != len(devices):
        what = f"{kind} got the values of {len(per_replica)} replicas for {len(devices)} devices."
        raise InternalError(describe(what))
    disagree = partial(_raise_mismatch, kind, call_sites)
    if structures is not None and any(tree != structures[0] for tree in structures):
        disagree("the tree of the values", {"tree": list(structures)})
    counts = [len(leaves) for leaves in per_replica]
    if len(set(counts)) > 1:
        disagree("the number of leaves", {"leaves": counts})
    names = leaf_names(per_replica[0])
    replicas = [
        [as_array(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
        for leaves in per_replica
    ]
    for name, parts in zip(names, zip(*replicas, strict=True), strict=True):
        dtypes = [str(part.dtype) for part in parts]
        shapes = [part.shape for part in parts]
        if len(set(dtypes)) > 1 or len({_compared(shape, axis) for shape in shapes}) > 1:
            disagree(name, {"dtype": dtypes, "shape": shapes})
    return replicas


def _compared(shape: tuple[int, ...], axis: int | None) -> tuple[int | None, ...]:
    """The shape without the length that may differ."""
    if not isinstance(axis, (int, np.integer)) or not -len(shape) <= axis < len(shape):
        return shape
    axis = int(axis) % len(shape)
    return (*shape[:axis], None, *shape[axis + 1 :])


def _raise_mismatch(
    kind: str, call_sites: CallSites, which: str, seen: dict[str, list[Any]]
) -> NoReturn:
    columns = {"replica": list(range(len(next(iter(seen.values()))))), **seen}
    if call_sites is not None:
        columns["at"] = [site or "not known" for site in call_sites]
    rows = list(zip(*columns.values(), strict=True))
    uneven = " Lengths may differ on the gathered axis only." if kind == "all_gather" else ""
    raise CollectiveMismatchError(
        describe(
            f"The replicas disagree on {which} of one {kind}.",
            table=Table(list(columns), rows),
            why=f"{kind} needs values of one kind from every replica.{uneven}",
            fix="give each replica the same tree, dtypes and shapes; pad uneven batches.",
        )
    )
