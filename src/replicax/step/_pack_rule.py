"""What an optax transformation does to packed leaves, read off what it does to each leaf.

`_element_rule` finds out that no element looks at another one. Leaves of one pack must also be
treated alike, as the leaves of the tree that they are (`_expressions`): then the rule of one of
them is that of the whole buffer.

A packed state is one of the transformation, in which the first leaf of a pack is an `rx.Packed`
with the states of all its leaves, and None stands for those of the others.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.step._element_evaluation import NotElementwise
from replicax.step._element_rule import ElementRule
from replicax.step._expressions import kinds_of_leaves
from replicax.step._pack_refusals import (
    not_elementwise,
    other_state,
    treated_differently,
)
from replicax.values import Packed
from replicax.values._layout import Layout, cut
from replicax.values._packed import is_packed, layout_of
from replicax.values._packing import join
from replicax.values._sparse import dense


class _Pack(NamedTuple):
    """Several leaves in one buffer.

    Attributes:
        layout: Their layout.
        leaves: Their numbers in the unpacked parameters.
        slots: For each of their states the numbers of the leaves of the unpacked state.
    """

    layout: Layout
    leaves: Sequence[int]
    slots: Sequence[Sequence[int]]


class PackRule:
    """The rule of a transformation for parameters with packed trees in them.

    Args:
        transformation: An optax transformation.
        params: The parameters, or their shapes and dtypes.
        extra: What `update` is given by name.

    Raises:
        UnimplementedError: It does not treat each element by itself.
        InvalidArgumentError: It treats leaves of one pack in different ways.
    """

    def __init__(self, transformation: Any, params: Any, extra: dict[str, Any]) -> None:
        try:
            self._rule = ElementRule(transformation, _unpacked_shapes(params), extra=extra)
        except NotElementwise as verdict:
            raise not_elementwise(verdict.reason) from None
        leaf_of = self._rule.leaf_of
        states_of: list[list[int]] = [[] for _ in self._rule.leaves]
        for state, leaf in enumerate(leaf_of):
            if leaf is not None:
                states_of[leaf].append(state)
        kinds = kinds_of_leaves(self._rule, states_of)
        self._first: list[int] = []
        self._packs: list[_Pack] = []
        for layout, leaves in _parts(params):
            self._first.append(leaves[0])
            if layout is not None:
                if len({kinds[k] for k in leaves}) > 1:
                    raise treated_differently(layout, [kinds[k] for k in leaves])
                slots = list(zip(*(states_of[k] for k in leaves), strict=True))
                self._packs.append(_Pack(layout, leaves, slots))

    def init(self, params: Any) -> Any:
        """The first state."""
        starts = self._rule.start(_unpacked(params))
        return self._packed(starts)

    def update(self, gradients: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """The updates, in the structure of the parameters, and the new state.

        Raises:
            InvalidArgumentError: The gradients or the state are not for these parameters.
        """
        structure: Any = jax.tree.structure(params)
        given = self._whole(_flattened_up_to(structure, dense(gradients)))
        whole = self._whole(jax.tree.leaves(params))
        updates, new = _update(self._rule, given, self._buffers(state), whole)
        for pack in self._packs:
            for first, *others in pack.slots:
                new[first] = Packed(pack.layout, [new[first]])
                for other in others:
                    new[other] = None
        return (
            structure.unflatten([updates[first] for first in self._first]),
            self._rule.in_structure(new),
        )

    def unpack_state(self, state: Any) -> Any:
        """The state with whole leaves."""
        leaves = self._buffers(state)
        for pack in self._packs:
            for slot in pack.slots:
                for place, leaf in zip(slot, cut(pack.layout, 0, leaves[slot[0]]), strict=True):
                    leaves[place] = leaf
        return self._rule.in_structure(leaves)

    def pack_state(self, state: Any) -> Any:
        """The packed state, from one with whole leaves."""
        structure: Any = jax.tree.structure(state)
        if structure != jax.tree.structure(self._rule.state):
            raise other_state(f"its structure is {structure}")
        for leaf, aval in zip(jax.tree.leaves(state), self._rule.state_leaves, strict=True):
            if (jnp.shape(leaf), jnp.result_type(leaf)) != (aval.shape, aval.dtype):
                raise other_state(
                    f"a leaf has shape {jnp.shape(leaf)} and dtype {jnp.result_type(leaf)} where "
                    f"{aval.shape} and {aval.dtype} are meant to be"
                )
        return self._packed(jax.tree.leaves(state))

    def _packed(self, leaves: Sequence[Any]) -> Any:
        """A state, from whole leaves or what all elements of one are."""
        found = list(leaves)
        packed = {place for pack in self._packs for slot in pack.slots for place in slot}
        for place, aval in enumerate(self._rule.state_leaves):
            if place not in packed:
                found[place] = _filled(found[place], aval)
        for pack in self._packs:
            for first, *others in pack.slots:
                members = [leaves[place] for place in (first, *others)]
                dtype = self._rule.state_leaves[first].dtype
                found[first] = Packed(pack.layout, [_joined(members, pack.layout, dtype)])
                for other in others:
                    found[other] = None
        return self._rule.in_structure(found)

    def _whole(self, parts: Sequence[Any]) -> list[Any]:
        """Parts in the places of their first leaves."""
        found: list[Any] = [None] * len(self._rule.leaves)
        for first, part in zip(self._first, parts, strict=True):
            found[first] = part
        return found

    def _buffers(self, state: Any) -> list[Any]:
        """The leaves of a packed state; None for those that lie in the buffer of another."""
        try:
            found = self._rule.flat_state(state)
        except ValueError as error:
            raise other_state(str(error)) from None
        layouts = [layout_of(x) if is_packed(x) else x is None for x in found]
        wanted: list[Any] = [False] * len(found)
        for pack in self._packs:
            for first, *others in pack.slots:
                wanted[first] = pack.layout
                for other in others:
                    wanted[other] = True
        for has, needs in zip(layouts, wanted, strict=True):
            if has != needs:
                what = has if isinstance(has, Layout) else "None" if has else "an array"
                where = needs if isinstance(needs, Layout) else "None" if needs else "an array"
                raise other_state(f"there is {what} where {where} is meant to be")
        return [x.parts[0] if is_packed(x) else x for x in found]


@functools.partial(jax.jit, static_argnums=0)
def _update(
    rule: ElementRule, gradients: Any, states: Any, params: Any
) -> tuple[list[Any], list[Any]]:
    """Compiled as a whole, for the eager runner."""
    return rule.update(gradients, states, params)


# -- parts of a tree -----------------------------------------------------------------------


def _parts(params: Any) -> list[tuple[Layout | None, Sequence[int]]]:
    """For each leaf of the packed parameters the numbers of its leaves, and a pack's layout."""
    found: list[tuple[Layout | None, Sequence[int]]] = []
    start = 0
    for node in jax.tree.leaves(params, is_leaf=is_packed):
        if not is_packed(node):
            found.append((None, [start]))
            start += 1
            continue
        layout = layout_of(node)
        for number, pack in enumerate(layout.packs):
            of_pack = layout.of_pack(number) if len(pack) > 1 else None
            found.append((of_pack, [start + k for k in pack]))
        start += len(layout.shapes)
    return found


def _unpacked_shapes(params: Any) -> Any:
    """The shapes and dtypes of the unpacked parameters."""

    def unpacked(node: Any) -> Any:
        if not is_packed(node):
            return node
        layout = layout_of(node)
        dtypes = {
            k: x.dtype for x, pack in zip(node.parts, layout.packs, strict=True) for k in pack
        }
        avals = [jax.ShapeDtypeStruct(s, dtypes[k]) for k, s in enumerate(layout.shapes)]
        return layout.structure.unflatten(avals)

    return jax.tree.map(unpacked, params, is_leaf=is_packed)


def _unpacked(params: Any) -> list[Any]:
    """The leaves of the unpacked parameters."""
    whole = jax.tree.map(lambda x: x.unpack() if is_packed(x) else x, params, is_leaf=is_packed)
    return jax.tree.leaves(whole)


def _joined(members: Sequence[Any], layout: Layout, dtype: Any) -> Any:
    """One buffer of whole leaves, or of what all elements of a leaf are."""
    if all(jnp.ndim(x) == 0 for x in members):
        return _repeated(members, layout.sizes(0), dtype)
    avals = [jax.ShapeDtypeStruct(shape, dtype) for shape in layout.shapes]
    return join([_filled(x, aval) for x, aval in zip(members, avals, strict=True)])


def _repeated(members: Sequence[Any], sizes: Sequence[int], dtype: Any) -> Any:
    """Each number as often as it is said."""
    if any(isinstance(x, jax.core.Tracer) for x in members):
        each = jnp.stack([jnp.asarray(x, dtype) for x in members])
        return jnp.repeat(each, np.array(sizes), total_repeat_length=sum(sizes))
    known = np.array([np.asarray(x, dtype) for x in members])
    if known.tobytes() == known[:1].tobytes() * len(known):
        return jnp.full(sum(sizes), known[0], dtype)
    return jnp.asarray(np.repeat(known, sizes))


def _filled(value: Any, aval: Any) -> Any:
    """A whole leaf, from one or from what all its elements are."""
    if isinstance(aval.dtype, np.dtype):
        value = jnp.asarray(value, aval.dtype)
    return jnp.broadcast_to(value, aval.shape)


def _flattened_up_to(structure: Any, gradients: Any) -> list[Any]:
    try:
        found: list[Any] = structure.flatten_up_to(gradients)
    except ValueError as error:
        raise errors.InvalidArgumentError(
            errors.describe(
                "A packed optimizer was given gradients of another structure than the parameters.",
                why=str(error),
                fix="Differentiate with respect to the packed parameters, and unpack in the "
                "differentiated function.",
            )
        ) from None
    return found
