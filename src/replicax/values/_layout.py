"""Which leaves of a packed tree lie where, and how they are cut out of a buffer."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

_Shape = tuple[int, ...]


class Layout:
    """Which leaves of a tree lie in which part. Dtypes play no part: the parts have them.

    Attributes:
        structure: The tree's.
        shapes: The shape of each leaf.
        labels: What messages call each leaf: `['w']`.
        packs: For each part the numbers of its leaves. A part with one leaf has the leaf's shape,
            the others are 1-D.
        names: What messages and paths call each part, no two alike: `table`, or for several
            leaves `w0 to w9 (10 leaves, 3f21ac)`, where the last word tells packs of other leaves
            apart.
    """

    __slots__ = ("_key", "_number", "labels", "names", "packs", "shapes", "structure")

    def __init__(
        self,
        structure: Any,
        shapes: Sequence[_Shape],
        labels: Sequence[str],
        packs: Sequence[Sequence[int]],
        names: Sequence[str],
    ) -> None:
        self.structure, self.shapes, self.labels = structure, tuple(shapes), tuple(labels)
        self.packs, self.names = tuple(map(tuple, packs)), tuple(names)
        self._key = (structure, self.shapes, self.labels, self.packs)
        self._number = hash(self._key)

    @classmethod
    def of(
        cls,
        structure: Any,
        shapes: Sequence[_Shape],
        paths: Sequence[Any],
        packs: Sequence[Sequence[int]],
    ) -> Layout:
        """The layout of a tree, given the paths of its leaves."""
        labels = [jax.tree_util.keystr(path) for path in paths]
        short = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
        words = [w or "all" for w in short] if len(set(short)) == len(short) else labels
        names = []
        for pack in packs:
            name = words[pack[0]]
            if len(pack) > 1:
                members = repr([(labels[i], shapes[i]) for i in pack]).encode()
                digest = hashlib.sha256(members).hexdigest()[:6]
                name += f" to {words[pack[-1]]} ({len(pack)} leaves, {digest})"
            names.append(name)
        return cls(structure, shapes, labels, packs, names)

    def of_pack(self, part: int) -> Layout:
        """The layout of a list of the leaves of one part."""
        pack = self.packs[part]
        return Layout(
            jax.tree.structure([0] * len(pack)),
            [self.shapes[i] for i in pack],
            [self.labels[i] for i in pack],
            [range(len(pack))],
            [self.names[part]],
        )

    def shape(self, part: int) -> _Shape:
        """The shape of a part."""
        pack = self.packs[part]
        return self.shapes[pack[0]] if len(pack) == 1 else (sum(self.sizes(part)),)

    def sizes(self, part: int) -> list[int]:
        """Numbers of elements of its leaves."""
        return [math.prod(self.shapes[i]) for i in self.packs[part]]

    def __eq__(self, other: object) -> bool:
        if self is other:  # As in nearly all calls of a step.
            return True
        if not isinstance(other, Layout):
            return NotImplemented
        return self._number == other._number and self._key == other._key

    def __hash__(self) -> int:
        return self._number

    def __reduce__(self) -> tuple[Any, ...]:
        """Take it apart for pickle: hashes of strings differ between processes."""
        return Layout, (self.structure, self.shapes, self.labels, self.packs, self.names)

    def __repr__(self) -> str:
        return f"<{'; '.join(shortened(self.names))}>"


def cut(layout: Layout, part: int, array: Any) -> list[Any]:
    """The leaves of a part of several, from its buffer."""
    sizes, pack = layout.sizes(part), layout.packs[part]
    shapes = [layout.shapes[i] for i in pack]
    if isinstance(array, np.ndarray):
        ends = list(itertools.accumulate(sizes))[:-1]
        return [x.reshape(shape) for x, shape in zip(np.split(array, ends), shapes, strict=True)]
    # Behind the barrier, and, as its transpose is one, before it, what computes a leaf or its
    # cotangent is not computed again in the one operation that cuts or joins hundreds of them.
    found = lax.optimization_barrier(lax.split(array, sizes))
    return [lax.reshape(x, shape) for x, shape in zip(found, shapes, strict=True)]


def cut_outside(layout: Layout, part: int, array: Any) -> list[Any]:
    """The same, also of an array that is not being traced."""
    if isinstance(array, (np.ndarray, jax.core.Tracer)):
        return cut(layout, part, array)
    # One program with hundreds of results is compiled for seconds; one a shape takes none.
    found, start, sharding = [], 0, kept_sharding(array)
    for place, size in zip(layout.packs[part], layout.sizes(part), strict=True):
        found.append(_slice(layout.shapes[place], sharding)(array, np.int32(start)))
        start += size
    return found


@functools.lru_cache(maxsize=1024)
def _slice(shape: _Shape, sharding: Any) -> Any:
    def leaf(array: jax.Array, start: Any) -> jax.Array:
        flat = lax.dynamic_slice(array, (start,), (math.prod(shape),))
        return lax.reshape(flat, shape)

    return jax.jit(leaf, out_shardings=sharding)


def kept_sharding(array: jax.Array) -> Any:
    """The sharding of what is made of a replicated array; None leaves it to XLA."""
    is_spread = len(array.sharding.device_set) > 1 and array.is_fully_replicated
    return array.sharding if is_spread else None


def shortened(words: Sequence[str]) -> Sequence[str]:
    """Few of many words."""
    most = 6
    if len(words) <= most:
        return words
    return [*words[: most - 1], f"and {len(words) - most + 1} more"]
