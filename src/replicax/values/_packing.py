"""`rx.pack`: which leaves of a tree lie together, and how they get there."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax import errors
from replicax.collectives import PackLimits, plan_packs
from replicax.values._combine import is_leaf
from replicax.values._indexed_slices import IndexedSlices
from replicax.values._layout import Layout, kept_sharding
from replicax.values._packed import Packed, is_packed

_LEAF_BYTES, _PACK_BYTES = 64 * 1024, 4 * 1024 * 1024


def pack(
    tree: Any, *, leaf_bytes: int = _LEAF_BYTES, pack_bytes: int = _PACK_BYTES, by: Any = None
) -> Packed:
    """Put small leaves of a tree together in a few buffers, for state with very many of them.

    A step pays for each array that it takes, updates and returns. With hundreds of small ones that
    is most of it; packed state is a few arrays. Pack once, keep the `rx.Packed` between steps, and
    unpack in the function that computes the loss: gradients, all-reduces and updates then work on
    whole buffers.

    Small leaves of one dtype lie together, in the order of the tree. Large leaves, and arrays
    without axes, stay as they are and are not copied.

    Context: any, also while JAX traces. Collective: no; with arrays that span processes, all of
    them call it.

    Args:
        tree: A tree of arrays. A pack of NumPy arrays is a NumPy array.
        leaf_bytes: Up to which size a leaf is packed.
        pack_bytes: Up to which size a pack grows.
        by: A tree of labels, such as numbers or strings, in the structure of `tree`: leaves with
            other labels lie in other packs. It is for optimizers that treat some leaves in another
            way: `by=jax.tree.map(jnp.ndim, params)` for weight decay of matrices alone.

    Returns:
        The packed tree.

    Raises:
        ArgumentTypeError: A leaf is no array, or a label cannot be hashed.
        InvalidArgumentError: A size is negative, or `by` has another structure.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> params = {"b": jnp.zeros(2), "table": jnp.ones((500, 64)), "w": jnp.ones((2, 2))}
        >>> packed = rx.pack(params)
        >>> [part.shape for part in packed.parts]
        [(6,), (500, 64)]
        >>> print(packed.unpack()["w"])
        [[1. 1.]
         [1. 1.]]
    """
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_stops)
    paths, leaves = [path for path, _ in with_paths], [leaf for _, leaf in with_paths]
    for path, leaf in with_paths:
        _check_leaf(jax.tree_util.keystr(path), leaf)
    for name, size in (("leaf_bytes", leaf_bytes), ("pack_bytes", pack_bytes)):
        _check_size(name, size)
    labels = [None] * len(leaves) if by is None else _labels(by, structure)
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in leaves]
    kinds: list[Hashable] = [
        (leaf.dtype, label) if _may_lie_with_others(leaf) else (leaf.dtype, label, number)
        for number, (leaf, label) in enumerate(zip(leaves, labels, strict=True))
    ]
    limits = PackLimits(leaf_bytes=leaf_bytes, pack_bytes=pack_bytes)
    packs = sorted(plan_packs(sizes, kinds, limits=limits))
    layout = Layout.of(structure, [leaf.shape for leaf in leaves], paths, packs)
    parts = [
        leaves[members[0]] if len(members) == 1 else join([leaves[i] for i in members])
        for members in packs
    ]
    return Packed(layout, parts)


def join(leaves: Sequence[Any]) -> Any:
    """One buffer with the elements of some arrays; of NumPy if they all are."""
    if all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return np.concatenate([leaf.ravel() for leaf in leaves])
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    if any(isinstance(leaf, jax.core.Tracer) for leaf in arrays):
        return _joined(leaves)
    shardings = {kept_sharding(leaf) for leaf in arrays}
    return _join_on_devices(shardings.pop() if len(shardings) == 1 else None)(leaves)


def _joined(leaves: Sequence[Any]) -> jax.Array:
    flat = [lax.reshape(jnp.asarray(leaf), (leaf.size,)) for leaf in leaves]
    # The barrier keeps what computes the leaves out of the one operation that joins them.
    return lax.concatenate(lax.optimization_barrier(flat), 0)


@functools.lru_cache(maxsize=256)
def _join_on_devices(sharding: Any) -> Any:
    return jax.jit(_joined, out_shardings=sharding)


def _may_lie_with_others(leaf: Any) -> bool:
    """Not a scalar, a key, or what is spread over devices."""
    if leaf.ndim == 0 or not isinstance(leaf.dtype, np.dtype):
        return False
    is_known = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    return not is_known or leaf.is_fully_replicated


def _stops(value: Any) -> bool:
    return is_leaf(value) or is_packed(value) or isinstance(value, IndexedSlices)


def _check_leaf(label: str, leaf: Any) -> None:
    if isinstance(leaf, jax.Array):
        return
    if isinstance(leaf, (np.ndarray, np.generic)) and (
        leaf.dtype == bool or jnp.issubdtype(leaf.dtype, np.number)
    ):
        return
    fix = "Pass arrays: `jnp.asarray(x)` makes one of a number."
    if isinstance(leaf, Packed):
        fix = "Unpack it before, or leave it out of the tree."
    elif is_leaf(leaf):
        fix = (
            "Pack the arrays, then make variables of the parts: "
            "`jax.tree.map(rx.Variable, rx.pack(params))`."
        )
    elif isinstance(leaf, IndexedSlices):
        fix = "Make them dense: `slices.to_dense()`."
    raise errors.ArgumentTypeError(
        errors.describe(f"rx.pack: leaf `{label}` is {leaf!r}, which is no array.", fix=fix)
    )


def _check_size(name: str, size: Any) -> None:
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return
    raise errors.InvalidArgumentError(
        errors.describe(
            f"rx.pack: `{name}` = {size!r}.", fix="Pass a number of bytes, such as 65536."
        )
    )


def _labels(by: Any, structure: Any) -> list[Any]:
    try:
        labels: list[Any] = structure.flatten_up_to(by)
    except ValueError as error:
        raise errors.InvalidArgumentError(
            errors.describe(
                "rx.pack: `by` has another structure than the tree.",
                why=str(error),
                fix="Make it from the tree: `by=jax.tree.map(jnp.ndim, params)`.",
            )
        ) from None
    for label in labels:
        try:
            hash(label)
        except TypeError:
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"rx.pack: `by` holds {label!r}, which cannot be hashed.",
                    fix="Use numbers, strings or tuples of them as labels.",
                )
            ) from None
    return labels
