"""One replica's share of each leaf: gradients scattered to it, updates gathered from it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax.collectives import LIMITS, Transport, plan_packs
from replicax.collectives._compat import production_order
from replicax.step._context import ReplicaContext
from replicax.values._sharded import from_shares, in_shares, share_length


@dataclasses.dataclass(frozen=True)
class Sharing:
    """How some leaves are shared out among replicas.

    Small leaves of one dtype travel together, so that there are few collectives.

    Attributes:
        shapes: The shapes of the leaves.
        dtypes: Their dtypes.
        count: The number of replicas.
        packs: Numbers of leaves that travel together. Leaves in none, such as scalars, are whole
            on each replica.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    count: int
    packs: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls,
        leaves: Sequence[Any],
        gradients: Sequence[Any],
        count: int,
        *,
        bytes_per_pack: int = 0,
        transport: Transport = Transport.MEMORY,
    ) -> Sharing:
        """The sharing of arrays, in packs that follow the order of their gradients."""
        shapes = tuple(tuple(leaf.shape) for leaf in leaves)
        dtypes = tuple(leaf.dtype for leaf in leaves)
        cut = [k for k, shape in enumerate(shapes) if is_cut(shape)]
        sizes = [math.prod(shapes[k]) * dtypes[k].itemsize for k in cut]
        packs = plan_packs(
            sizes,
            [dtypes[k] for k in cut],
            bytes_per_pack,
            limits=LIMITS[transport],
            produced=production_order([gradients[k] for k in cut]),
        )
        return cls(shapes, dtypes, count, tuple(tuple(cut[i] for i in pack) for pack in packs))

    @functools.cached_property
    def whole(self) -> list[int]:
        """Numbers of the leaves that are not cut."""
        return [k for k, shape in enumerate(self.shapes) if not is_cut(shape)]

    def scattered(self, context: ReplicaContext, leaves: Sequence[Any]) -> list[Any]:
        """The mean over the replicas: of each leaf this replica's share. Collective."""
        buffers = _packed(self, list(leaves))
        shares = context.reduce_scatter("mean", buffers)
        whole = [leaves[k] for k in self.whole]
        return list(_unpacked(self, shares, context.all_reduce("mean", whole) if whole else []))

    def own(self, leaves: Sequence[Any], replica: Any) -> list[Any]:
        """This replica's share of leaves that all have."""
        return list(_own(self, list(leaves), replica))

    def gathered(self, context: ReplicaContext, shares: Sequence[Any]) -> list[Any]:
        """The leaves of which the replicas have the shares. Collective."""
        joined = context.all_gather(_joined(self, list(shares)), axis=0)
        return list(_taken_apart(self, joined, [shares[k] for k in self.whole]))


def is_cut(shape: Sequence[int]) -> bool:
    """Whether an array of a shape is cut into shares; scalars are not, nor what is empty."""
    return len(shape) > 0 and math.prod(shape) > 0


# Compiled, because the eager runner takes a millisecond and more for each operation.


@functools.partial(jax.jit, static_argnums=0)
def _packed(sharing: Sharing, leaves: Sequence[Any]) -> list[Any]:
    buffers = []
    for pack in sharing.packs:
        # Without the barrier XLA computes the gradients again, into the buffer.
        members = jax.lax.optimization_barrier([leaves[k] for k in pack])
        parts = [in_shares(member, sharing.count) for member in members]
        buffers.append((parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)).ravel())
    return buffers


@functools.partial(jax.jit, static_argnums=0)
def _unpacked(sharing: Sharing, buffers: Sequence[Any], whole: Sequence[Any]) -> list[Any]:
    shares = dict(zip(sharing.whole, whole, strict=True))
    for pack, buffer in zip(sharing.packs, buffers, strict=True):
        start = 0
        for k in pack:
            length = share_length(sharing.shapes[k], sharing.count)
            shares[k] = buffer[start : start + length].astype(sharing.dtypes[k])
            start += length
    return [shares[k] for k in range(len(sharing.shapes))]


@functools.partial(jax.jit, static_argnums=0)
def _own(sharing: Sharing, leaves: Sequence[Any], replica: Any) -> list[Any]:
    return [
        in_shares(leaf, sharing.count)[replica] if is_cut(leaf.shape) else leaf for leaf in leaves
    ]


@functools.partial(jax.jit, static_argnums=0)
def _joined(sharing: Sharing, shares: Sequence[Any]) -> list[Any]:
    return [
        shares[pack[0]] if len(pack) == 1 else jnp.concatenate([shares[k] for k in pack])
        for pack in sharing.packs
    ]


@functools.partial(jax.jit, static_argnums=0)
def _taken_apart(sharing: Sharing, joined: Sequence[Any], whole: Sequence[Any]) -> list[Any]:
    leaves = dict(zip(sharing.whole, whole, strict=True))
    for pack, buffer in zip(sharing.packs, joined, strict=True):
        rows, start = buffer.reshape(sharing.count, -1), 0
        for k in pack:
            length = share_length(sharing.shapes[k], sharing.count)
            leaves[k] = from_shares(rows[:, start : start + length], sharing.shapes[k])
            start += length
    return [leaves[k] for k in range(len(sharing.shapes))]
