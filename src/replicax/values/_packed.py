"""Trees whose small leaves lie together in a few buffers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from replicax import errors
from replicax.values._foreign import as_variable
from replicax.values._layout import Layout, cut_outside, shortened
from replicax.values._operators import ArrayLike


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
                    fix=f"It has {list(shortened(self._layout.names))}; `packed.unpack()` gives "
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
            found = [array] if len(pack) == 1 else cut_outside(self._layout, number, array)
            for place, leaf in zip(pack, found, strict=True):
                leaves[place] = leaf
        return self._layout.structure.unflatten(leaves)

    def __repr__(self) -> str:
        found = [f"{name}: {_brief(x)}" for name, x in zip(self.names, self._parts, strict=True)]
        return f"Packed({', '.join(shortened(found))})"


def is_packed(value: Any) -> bool:
    """Whether a tree function that treats packed trees as a whole stops at `value`."""
    return isinstance(value, Packed)


def holds_packed(tree: Any) -> bool:
    """Whether there is a packed tree anywhere in a tree."""
    return any(map(is_packed, jax.tree.leaves(tree, is_leaf=is_packed)))


def layout_of(packed: Packed) -> Layout:
    """Which leaves lie in which part."""
    return packed._layout


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


# -- pytree registration: the children are whatever JAX puts there ------------------


def _flatten(value: Packed) -> tuple[tuple[Any, ...], Layout]:
    return value._parts, value._layout


def _flatten_with_keys(value: Packed) -> tuple[tuple[tuple[Any, Any], ...], Layout]:
    key = jax.tree_util.DictKey
    children = tuple((key(n), x) for n, x in zip(value.names, value._parts, strict=True))
    return children, value._layout


jax.tree_util.register_pytree_with_keys(Packed, _flatten_with_keys, Packed, _flatten)
