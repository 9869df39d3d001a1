"""Trees whose small leaves lie together in a few buffers."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from replicax import errors
from replicax.values._foreign import as_variable
from replicax.values._operators import ArrayLike

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
        return f"<{'; '.join(_shortened(self.names))}>"


class Packed:
    """A tree whose small leaves lie together in a few buffers; `rx.pack` makes it.

    It is a pytree node with few leaves, the parts: `jax.tree.map`, gradients, all-reduces and
    updates take a part as one array. `unpack` gives the tree.

    Give it to an optax transformation through `rx.pack_optimizer` or `rx.Optimizer`: a rule that
    looks at single leaves (a mask, a norm of each) would else take a whole part for one.

    Attributes:
        parts: The parts, in the order of their first leaves: arrays, or whatever was put in their
            places, such as variables. A large leaf is a part of its own.
        names: What is in each part: a name of a leaf, or of the first and last of several. A part
            is also `packed[name]`, and messages and checkpoints call it by this name.
    """

    __slots__ = ("_layout", "_parts")

    def __init__(self, layout: Layout, parts: Iterable[Any]) -> None:
        self._layout, self._parts = layout, tuple(parts)

    @property
    def parts(self) -> tuple[Any, ...]:
        """The parts, in the order of their first leaves."""
        return self._parts

    @property
    def names(self) -> tuple[str, ...]:
        """What is in each part."""
        return self._layout.names

    def __getitem__(self, name: str) -> Any:
        """The part of this name."""
        if name not in self._layout.names:
            raise errors.NotFoundError(
                errors.describe(
                    f"There is no part {name!r} in {self!r}.",
                    fix=f"It has {list(_shortened(self._layout.names))}; `packed.unpack()` gives "
                    "the tree with its leaves.",
                )
            )
        return self._parts[self._layout.names.index(name)]

    __iter__ = None  # Neither the parts nor the leaves would be meant.

    def unpack(self) -> Any:
        """The tree.

        Variables are read. The gradient with respect to a part is one array, which is made of
        those of its leaves by one copy.

        Context: any. Collective: no; of arrays that span processes, all of them call it.

        Returns:
            The tree, with arrays as leaves. Leaves of a NumPy part are views of it.

        Raises:
            InvalidArgumentError: A part has not the shape that `rx.pack` gave it.
            ArgumentTypeError: A part is no array and no variable.

        Examples:
            >>> import jax
            >>> import jax.numpy as jnp
            >>> import replicax as rx
            >>> packed = rx.pack({"b": jnp.zeros(2), "w": jnp.ones((2, 2))})
            >>> doubled = jax.tree.map(lambda part: 2 * part, packed)
            >>> print(doubled.unpack()["w"])
            [[2. 2.]
             [2. 2.]]
        """
        leaves: list[Any] = [None] * len(self._layout.shapes)
        for number, part in enumerate(self._parts):
            array = _as_array(self, number, part)
            pack = self._layout.packs[number]
            found = [array] if len(pack) == 1 else _cut(self._layout, number, array)
            for place, leaf in zip(pack, found, strict=True):
                leaves[place] = leaf
        return self._layout.structure.unflatten(leaves)

    def __repr__(self) -> str:
        found = [f"{name}: {_brief(x)}" for name, x in zip(self.names, self._parts, strict=True)]
        return f"Packed({', '.join(_shortened(found))})"


def is_packed(value: Any) -> bool:
    """Whether a tree function that treats packed trees as a whole stops at `value`."""
    return isinstance(value, Packed)


def holds_packed(tree: Any) -> bool:
    """Whether there is a packed tree anywhere in a tree."""
    return any(map(is_packed, jax.tree.leaves(tree, is_leaf=is_packed)))


def layout_of(packed: Packed) -> Layout:
    """Which leaves lie in which part."""
    return packed._layout


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


def _cut(layout: Layout, part: int, array: Any) -> list[Any]:
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


def _as_array(packed: Packed, number: int, part: Any) -> Any:
    part = as_variable(part)
    array = part.value if isinstance(part, ArrayLike) else part
    if not isinstance(array, (jax.Array, np.ndarray, np.generic)):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"Part `{packed.names[number]}` of a packed tree is {_brief(part)}, which is no "
                "array.",
                fix="Unpack what holds arrays or variables. Values of several replicas are reduced "
                "first: `strategy.reduce('mean', packed, axis=None)`.",
            )
        )
    wanted = layout_of(packed).shape(number)
    if array.shape != wanted:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"Part `{packed.names[number]}` of a packed tree has shape {array.shape}, and not "
                f"{wanted}.",
                why="Its leaves lie one after the other in an array of that shape.",
                fix="Change parts element by element only, or unpack before. Of stacked packed "
                "trees each is unpacked by itself: `jax.vmap(lambda p: p.unpack())(packed)`.",
            )
        )
    return array


def _brief(value: Any) -> str:
    if not hasattr(value, "dtype") or isinstance(value, type):
        return type(value).__name__
    kind = (
        "" if isinstance(value, (jax.Array, np.ndarray, np.generic)) else f"{type(value).__name__} "
    )
    return f"{kind}{value.dtype}[{', '.join(map(str, value.shape))}]"


def _shortened(words: Sequence[str]) -> Sequence[str]:
    most = 6
    if len(words) <= most:
        return words
    return [*words[: most - 1], f"and {len(words) - most + 1} more"]


# -- pytree registration: the children are whatever JAX puts there ------------------


def _flatten(value: Packed) -> tuple[tuple[Any, ...], Layout]:
    return value._parts, value._layout


def _flatten_with_keys(value: Packed) -> tuple[tuple[tuple[Any, Any], ...], Layout]:
    key = jax.tree_util.DictKey
    children = tuple((key(n), x) for n, x in zip(value.names, value._parts, strict=True))
    return children, value._layout


jax.tree_util.register_pytree_with_keys(Packed, _flatten_with_keys, Packed, _flatten)
