"""What an optax transformation does to each element, read off its program.

A transformation is two functions of whole trees. Many of them treat all elements of a leaf alike,
and no element looks at another one: then the same rule holds for some rows of a table, or for one
replica's share of a leaf. Whether that is so is not guessed from names: `update` is traced with the
true shapes, and its program is evaluated on parts. Each value in it is

* the same for all elements: a step count, a learning rate, a leaf of zeros; it stays a scalar;
* one number an element of one leaf, computed from numbers of the same element; or
* something else, such as random keys, which must not meet elements.

Everything that joins elements (a norm, a sum, a matrix product) or leaves is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.step._element_evaluation import (
    Evaluation,
    Groups,
    NotElementwise,
    Value,
    computed,
)


class ElementRule:
    """The rule of a transformation for the elements of some leaves.

    Args:
        transformation: An optax transformation.
        params: The leaves' shapes and dtypes, in a tree.
        without_gradient: Numbers of leaves of which elements without a gradient are asked about.
        extra: What `update` is given by name.

    Attributes:
        leaves: The shapes and dtypes of the leaves.
        state: The shapes and dtypes of the state, in a tree.
        state_leaves: Those of its leaves.
        leaf_of: For each leaf of the state the number of the leaf of `params` whose elements it
            goes with, or None if it is the same for all.
        keeps: Numbers of leaves of which elements without a gradient, and their state, stay as
            they are.
        adds: Numbers of leaves whose update is that of each part of a sum of gradients, summed.

    Raises:
        NotElementwise: It is none for each element.
    """

    def __init__(
        self,
        transformation: Any,
        params: Any,
        without_gradient: Sequence[int] = (),
        extra: dict[str, Any] | None = None,
    ) -> None:
        self._transformation, self._extra = transformation, extra or {}
        params = jax.tree.map(_abstract, params)
        self.state = jax.eval_shape(transformation.init, params)
        self.leaves, _ = _flat(params)
        self.state_leaves, self._state_structure = _flat(self.state)
        # Scalars are whole in each part, so they take part like anything that is equal for all.
        self._homes = [k if leaf.ndim > 0 else None for k, leaf in enumerate(self.leaves)]
        self._program = jax.make_jaxpr(self._updated)(params, self.state, params)
        self._start = jax.make_jaxpr(lambda p: _flat(transformation.init(p))[0])(params)
        self._groups = Groups(len(self.leaves))
        self._analyse(set(without_gradient))

    def _updated(self, gradients: Any, state: Any, params: Any) -> list[Any]:
        updates, new = self._transformation.update(gradients, state, params, **self._extra)
        found, structure = _flat(new)
        if structure != self._state_structure or [_kind(x) for x in found] != [
            _kind(x) for x in self.state_leaves
        ]:
            raise NotElementwise("`update` returns a state of another structure, shape or dtype")
        return [*_flat(updates)[0], *found]

    # -- what holds for all elements --------------------------------------------

    def _analyse(self, without_gradient: set[int]) -> None:
        count = len(self.leaves)
        groups = self._homes
        gradients = [
            Value(
                None,
                group,
                group is None,
                "zero" if k in without_gradient else None,
                is_linear=True,
            )
            for k, group in enumerate(groups)
        ]
        states = [
            Value(None, self._groups.add(), form=i) if leaf.ndim else Value(None, is_uniform=True)
            for i, leaf in enumerate(self.state_leaves)
        ]
        params = [Value(None, group, group is None) for group in groups]
        inputs = [*gradients, *states, *params]
        outputs = Evaluation(self._groups, None).run(self._program, inputs)
        updates, new = outputs[:count], outputs[count:]
        self.leaf_of = [self._leaf(value) for value in states]
        for i, (leaf, before, after) in enumerate(
            zip(self.leaf_of, self.state_leaves, new, strict=True)
        ):
            if leaf is not None and before.shape != self.leaves[leaf].shape:
                raise NotElementwise("its state has another shape than the leaf that it is for")
            if self._leaf(after) != leaf and not (leaf is not None and after.is_uniform):
                raise NotElementwise(f"leaf {i} of its state goes with other elements afterwards")
        for k, update in enumerate(updates):
            if update.group is not None and self._leaf(update) != (k if groups[k] == k else None):
                raise NotElementwise("the update of one leaf depends on another one")
            if update.group is None and not update.is_uniform:
                raise NotElementwise("an update depends on the place of an element")
        self.keeps = {
            k
            for k in without_gradient
            if updates[k].form == "zero"
            and all(
                new[i].form == i and new[i].group is not None
                for i, leaf in enumerate(self.leaf_of)
                if leaf == k
            )
        }
        self.adds = {k for k in without_gradient if updates[k].is_linear and k not in self.leaf_of}

    def _leaf(self, value: Value) -> int | None:
        return None if value.group is None else self._groups.leaf(value.group)

    def in_structure(self, leaves: Sequence[Any]) -> Any:
        """Leaves of a state as a state."""
        return self._state_structure.unflatten(leaves)

    def flat_state(self, state: Any) -> list[Any]:
        """What stands in the places of the leaves of a state.

        Raises:
            ValueError: It is no such state.
        """
        places: list[Any] = self._state_structure.flatten_up_to(state)
        return places

    # -- parts of elements --------------------------------------------------------

    def start(self, params: Sequence[Any]) -> list[Any]:
        """The leaves of the first state, for whole leaves of parameters.

        Returns:
            A scalar where all elements start alike, else the whole leaf.
        """
        values = [Value(x, home, home is None) for x, home in zip(params, self._homes, strict=True)]
        found = Evaluation(self._groups, computed).run(self._start, values)
        return [value.array for value in found]

    def update(
        self, gradients: Sequence[Any], states: Sequence[Any], params: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The updates and the new state of parts: of each leaf any elements, in any shape.

        Args:
            gradients: One part a leaf; None for leaves that are left out.
            states: The same elements of the leaves of the state that go with them.
            params: The same elements of the parameters.
        """
        found = self.evaluated(gradients, states, params, computed)
        arrays, homes = [*gradients, *states], [*self._homes, *self.leaf_of]
        whole = [
            x if home is None else None if array is None else jnp.broadcast_to(x, jnp.shape(array))
            for x, array, home in zip(found, arrays, homes, strict=True)
        ]
        count = len(self.leaves)
        return whole[:count], whole[count:]

    def evaluated(
        self,
        gradients: Sequence[Any],
        states: Sequence[Any],
        params: Sequence[Any],
        bind: Callable[..., Any],
        bind_other: Callable[..., Any] | None = None,
    ) -> list[Any]:
        """What the program of `update` makes of parts, or of what stands for them.

        Args:
            gradients: One part a leaf.
            states: One for each leaf of the state.
            params: One part a leaf.
            bind: As of `Evaluation`.
            bind_other: As of `Evaluation`.

        Returns:
            The updates, then the leaves of the new state.
        """
        arrays = [*gradients, *states, *params]
        homes = [*self._homes, *self.leaf_of, *self._homes]
        scalars = [leaf.ndim == 0 for leaf in (*self.leaves, *self.state_leaves, *self.leaves)]
        values = [
            Value(array, home, home is None and scalar)
            for array, home, scalar in zip(arrays, homes, scalars, strict=True)
        ]
        found = Evaluation(self._groups, bind, bind_other).run(self._program, values)
        return [value.array for value in found]


def _flat(tree: Any) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return leaves, structure


def _kind(leaf: Any) -> tuple[Any, Any]:
    return (tuple(leaf.shape), leaf.dtype)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def check_transformation(value: Any, call: str, example: str) -> None:
    """Refuse what is no optax transformation.

    Args:
        value: What was given.
        call: To what, as messages say it.
        example: What to pass.

    Raises:
        ArgumentTypeError: It has no `init` and `update`.
    """
    if not (hasattr(value, "init") and hasattr(value, "update")):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"{call} was given {value!r}, which is no transformation.",
                fix=f"Pass an optax transformation, such as `{example}`.",
            )
        )
