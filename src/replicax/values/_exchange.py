"""Components of per-replica values, exchanged between processes outside of compiled steps.

Shapes may differ between replicas there, so the processes tell each other the shapes first. The
bits then travel as one array of bytes, in one compiled all-gather.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.cluster import agree, gather
from replicax.values._distributed import PerReplica
from replicax.values._mesh import ReplicaMesh

# Lengths are rounded up to a power of two, so that few programs are compiled.
_LEAST_BYTES = 256


def all_components(mesh: ReplicaMesh, value: PerReplica) -> PerReplica:
    """The components of all processes, in this one. Collective where the mesh spans processes."""
    if not mesh.spans_processes:
        return value
    if value.stacked is not None:
        rows = None if value.rows is None else np.asarray(mesh.all_rows(value.rows))
        return PerReplica.from_stacked(mesh.all_rows(value.stacked), rows)
    return PerReplica([arrays[0] for arrays in exchanged(mesh, [[x] for x in value.values])])


def exchanged(mesh: ReplicaMesh, own: Sequence[Sequence[Any]]) -> list[list[jax.Array]]:
    """The arrays of the replicas of all processes, on the first device of this one. Collective.

    Args:
        mesh: The replicas.
        own: The arrays of each replica of this process.
    """
    hosts = [[_bits(array) for array in arrays] for arrays in own]
    kinds = [[_kind(array) for array in arrays] for arrays in own]
    all_kinds = list(itertools.chain.from_iterable(gather("exchange", kinds)))
    longest = max((sum(_num_bytes(kind) for kind in kinds) for kinds in all_kinds), default=0)
    length = max(_LEAST_BYTES, 1 << (longest - 1).bit_length()) if longest else 0
    if not length:
        return [[_from_bits(b"", kind) for kind in kinds] for kinds in all_kinds]
    rows = [np.frombuffer(b"".join(arrays).ljust(length, b"\0"), np.uint8) for arrays in hosts]
    whole = np.asarray(mesh.all_rows(mesh.from_rows(rows)))  # type: ignore[arg-type] # NumPy's do
    found = []
    for row, kinds in zip(whole, all_kinds, strict=True):
        edges = [0, *itertools.accumulate(map(_num_bytes, kinds))]
        data = row.tobytes()
        found.append(
            [
                _from_bits(data[first:last], kind)
                for kind, (first, last) in zip(kinds, itertools.pairwise(edges), strict=True)
            ]
        )
    return found


def joined(mesh: ReplicaMesh, tree: Any) -> Any:
    """Values that this process's components begin, as arrays of all processes. Collective.

    A value stays as it is, with the components of this process, if their shapes or dtypes differ
    between replicas.
    """
    structure: Any
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, PerReplica))
    kinds = [[_kind(component) for component in leaf.values] for leaf in leaves]
    records = agree(
        "distribute_values_from_function",
        {"structure": str(structure)},
        untold={"kinds": kinds},
        error=errors.StructureMismatchError,
        why="The values become one tree for all workers.",
    )
    values = []
    for i, leaf in enumerate(leaves):
        found = [kind for record in records for kind in record["kinds"][i]]
        is_alike = all(kind == found[0] for kind in found)
        values.append(PerReplica.from_stacked(mesh.from_rows(leaf.values)) if is_alike else leaf)
    return structure.unflatten(values)


def _kind(array: Any) -> list[Any]:
    """Dtype, shape and, of random keys, how they make numbers; in terms of JSON."""
    if _is_key(array):
        data = jax.random.key_data(array)
        return [str(data.dtype), list(data.shape), str(jax.random.key_impl(array))]
    return [str(array.dtype), list(np.shape(array)), None]


def _num_bytes(kind: Sequence[Any]) -> int:
    dtype, shape, _ = kind
    return int(np.prod(shape, dtype=np.int64)) * int(jnp.dtype(dtype).itemsize)


def _bits(array: Any) -> bytes:
    return np.asarray(jax.random.key_data(array) if _is_key(array) else array).tobytes()


def _from_bits(data: bytes, kind: Sequence[Any]) -> jax.Array:
    dtype, shape, keys = kind
    array = jnp.asarray(np.frombuffer(data, jnp.dtype(dtype)).reshape(shape))
    return array if keys is None else jax.random.wrap_key_data(array, impl=keys)


def _is_key(array: Any) -> bool:
    return isinstance(array, jax.Array) and bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))
