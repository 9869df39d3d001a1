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

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from replicax.step import _compat
from replicax.step._proof._calls import JAXPR_PARAMETERS
from replicax.step._proof._primitives import ARITHMETIC

_ELEMENTWISE = ARITHMETIC | frozenset(
    "convert_element_type copy copy_p reduce_precision stop_gradient optimization_barrier".split()
)
_REARRANGING = frozenset("broadcast_in_dim reshape squeeze expand_dims transpose rev slice".split())
_ZERO_TO_ZERO = frozenset(
    "abs asin asinh atan atanh cbrt ceil conj convert_element_type copy copy_p erf expm1 floor imag "
    "log1p neg optimization_barrier real reduce_precision round sign sin sinh sqrt square "
    "stop_gradient tan tanh".split()
)

Form: TypeAlias = Literal["zero"] | int | None
"""What is known of a value where an element has no gradient: zero, or the state of that number."""


class NotElementwise(Exception):  # noqa: N818 - a verdict, caught by who asked
    """A transformation whose rule is not one for each element.

    Attributes:
        reason: What it does, in words.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class _Value:
    """A value of the program.

    Attributes:
        array: A scalar, elements of a leaf, or the whole of something else; None in the analysis.
        group: Which elements they are; None if the value does not depend on elements.
        is_uniform: Whether all elements have the same number, which then is a scalar.
        form: What is known where there is no gradient.
    """

    array: Any
    group: int | None = None
    is_uniform: bool = False
    form: Form = None


class ElementRule:
    """The rule of a transformation for the elements of some leaves.

    Args:
        transformation: An optax transformation.
        params: The leaves' shapes and dtypes, in a tree.
        without_gradient: Numbers of leaves of which elements without a gradient are asked about.
        extra: What `update` is given by name.

    Attributes:
        state: The shapes and dtypes of the state, in a tree.
        leaf_of: For each leaf of the state the number of the leaf of `params` whose elements it
            goes with, or None if it is the same for all.
        keeps: Numbers of leaves of which elements without a gradient, and their state, stay as
            they are.

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
        self._leaves, self._structure = _flat(params)
        self._states, self._state_structure = _flat(self.state)
        # Scalars are whole in each part, so they take part like anything that is equal for all.
        self._is_split = [leaf.ndim > 0 for leaf in self._leaves]
        self._program = jax.make_jaxpr(self._updated)(params, self.state, params)
        self._start = jax.make_jaxpr(lambda p: _flat(transformation.init(p))[0])(params)
        self._groups = _Groups(len(self._leaves))
        self._analyse(set(without_gradient))

    def _updated(self, gradients: Any, state: Any, params: Any) -> list[Any]:
        updates, new = self._transformation.update(gradients, state, params, **self._extra)
        found, structure = _flat(new)
        if structure != self._state_structure or [_kind(x) for x in found] != [
            _kind(x) for x in self._states
        ]:
            raise NotElementwise("`update` returns a state of another structure, shape or dtype")
        return [*_flat(updates)[0], *found]

    # -- what holds for all elements --------------------------------------------

    def _analyse(self, without_gradient: set[int]) -> None:
        count = len(self._leaves)
        groups = [k if split else None for k, split in enumerate(self._is_split)]
        gradients = [
            _Value(None, group, group is None, "zero" if k in without_gradient else None)
            for k, group in enumerate(groups)
        ]
        states = [
            _Value(None, self._groups.add(), form=i)
            if leaf.ndim
            else _Value(None, is_uniform=True)
            for i, leaf in enumerate(self._states)
        ]
        params = [_Value(None, group, group is None) for group in groups]
        outputs = self._run([*gradients, *states, *params], None)
        updates, new = outputs[:count], outputs[count:]
        self.leaf_of = [self._leaf(value) for value in states]
        for i, (leaf, before, after) in enumerate(
            zip(self.leaf_of, self._states, new, strict=True)
        ):
            if leaf is not None and before.shape != self._leaves[leaf].shape:
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

    def _leaf(self, value: _Value) -> int | None:
        return None if value.group is None else self._groups.leaf(value.group)

    def in_structure(self, leaves: Sequence[Any]) -> Any:
        """Leaves of a state as a state."""
        return self._state_structure.unflatten(leaves)

    # -- parts of elements --------------------------------------------------------

    def start(self, params: Sequence[Any]) -> list[Any]:
        """The leaves of the first state, for whole leaves of parameters.

        Returns:
            A scalar where all elements start alike, else the whole leaf.
        """
        values = [
            _Value(x, k if split else None, not split)
            for k, (x, split) in enumerate(zip(params, self._is_split, strict=True))
        ]
        found = _Evaluation(self._groups, _bound).run(self._start, values)
        return [value.array for value in found]

    def update(
        self, gradients: Sequence[Any], states: Sequence[Any], params: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The updates and the new state of parts: of each leaf any elements, in any shape.

        Args:
            gradients: One part a leaf.
            states: The same elements of the leaves of the state that go with them.
            params: The same elements of the parameters.
        """
        count = len(self._leaves)
        groups = [k if split else None for k, split in enumerate(self._is_split)]
        arrays = [*gradients, *states, *params]
        homes = [*groups, *self.leaf_of, *groups]
        scalars = [leaf.ndim == 0 for leaf in (*self._leaves, *self._states, *self._leaves)]
        values = [
            _Value(array, home, home is None and scalar)
            for array, home, scalar in zip(arrays, homes, scalars, strict=True)
        ]
        found = self._run(values, _bound)
        shapes = [
            None if home is None else jnp.shape(x)
            for x, home in zip(arrays, homes, strict=True)
        ]
        whole = [
            x.array if shape is None else jnp.broadcast_to(x.array, shape)
            for x, shape in zip(found, shapes, strict=False)
        ]
        return whole[:count], whole[count:]

    def _run(self, values: Sequence[_Value], bind: Any) -> list[_Value]:
        return _Evaluation(self._groups, bind).run(self._program, values)


class _Groups:
    """Elements that were found to be the same: those of the leaves, and of what goes with them."""

    def __init__(self, leaves: int) -> None:
        self._leaves = leaves
        self._parent = list(range(leaves))

    def add(self) -> int:
        """A new group."""
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def find(self, group: int) -> int:
        """The group that stands for a group."""
        while self._parent[group] != group:
            group = self._parent[group]
        return group

    def leaf(self, group: int) -> int | None:
        """The leaf whose elements they are."""
        found = self.find(group)
        return found if found < self._leaves else None

    def join(self, groups: Sequence[int]) -> int:
        """Note that they are the same elements.

        Raises:
            NotElementwise: They belong to different leaves.
        """
        found = sorted({self.find(group) for group in groups})
        for other in found[1:]:
            if other < self._leaves:
                raise NotElementwise("it computes with elements of two leaves together")
            self._parent[other] = found[0]
        return found[0]


class _Evaluation:
    """One pass through a program.

    Args:
        groups: Which elements go together.
        bind: Computes an equation; None to learn what the program does without computing.
    """

    def __init__(self, groups: _Groups, bind: Callable[..., Any] | None) -> None:
        self._groups, self._bind = groups, bind

    def run(self, jaxpr: Any, inputs: Sequence[_Value]) -> list[_Value]:
        """The outputs of a jaxpr."""
        inner, constants = _compat.opened(jaxpr)
        values: dict[Any, _Value] = {}
        for variable, constant in zip(inner.constvars, constants, strict=True):
            values[variable] = _Value(constant, None, np.ndim(constant) == 0)
        values.update(zip(inner.invars, inputs, strict=True))

        def read(atom: Any) -> _Value:
            if isinstance(atom, _compat.literal_type()):
                is_zero = np.ndim(atom.val) == 0 and bool(np.asarray(atom.val) == 0)
                return _Value(
                    atom.val, None, np.ndim(atom.val) == 0, "zero" if is_zero else None
                )
            return values[atom]

        for eqn in inner.eqns:
            outputs = self._equation(eqn, [read(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in inner.outvars]

    def _equation(self, eqn: Any, operands: list[_Value]) -> list[_Value]:
        name = eqn.primitive.name
        if name in JAXPR_PARAMETERS:
            parameters = JAXPR_PARAMETERS[name]
            jaxpr = next(eqn.params[p] for p in parameters if p in eqn.params)
            return self.run(jaxpr, operands)
        meet = [value.group for value in operands if value.group is not None]
        uniform = all(value.is_uniform for value in operands if value.group is None)
        if not meet and not (uniform and operands and name in _ELEMENTWISE | _REARRANGING):
            return self._other(eqn, operands)
        if name in _REARRANGING:
            return [self._rearranged(eqn, operands)]
        if name not in _ELEMENTWISE:
            raise NotElementwise(_joins(eqn))
        if not uniform:
            raise NotElementwise("what it does to an element depends on the place of the element")
        group = self._groups.join(meet) if meet else None
        if name == "optimization_barrier":
            return operands
        if name == "convert_element_type" and self._bind is None and not meet:
            return operands  # A constant stays known.
        form = _form(eqn, operands)
        arrays = [None] * len(eqn.outvars)
        if self._bind is not None:
            arrays = self._bind(eqn, [value.array for value in operands])
        return [_Value(array, group, group is None, form) for array in arrays]

    def _rearranged(self, eqn: Any, operands: list[_Value]) -> _Value:
        """Scalars stay scalars; elements must keep their places."""
        value = operands[0]
        if value.group is None or eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape:
            if value.group is None or eqn.primitive.name in {"broadcast_in_dim", "reshape"}:
                return value
        raise NotElementwise(_joins(eqn))

    def _other(self, eqn: Any, operands: list[_Value]) -> list[_Value]:
        """An equation without elements, computed as it stands."""
        arrays = [None] * len(eqn.outvars)
        if self._bind is not None:
            whole = [
                jnp.broadcast_to(value.array, atom.aval.shape) if value.is_uniform else value.array
                for value, atom in zip(operands, eqn.invars, strict=True)
            ]
            found = eqn.primitive.bind(*whole, **eqn.params)
            arrays = list(found) if eqn.primitive.multiple_results else [found]
        return [
            _Value(array, None, variable.aval.shape == ())
            for array, variable in zip(arrays, eqn.outvars, strict=True)
        ]


def _bound(eqn: Any, arrays: Sequence[Any]) -> list[Any]:
    """An elementwise equation on elements in the shape that they have here."""
    shape = next((jnp.shape(x) for x in arrays if jnp.ndim(x)), ())
    same = [
        jnp.broadcast_to(jnp.asarray(x, dtype=atom.aval.dtype), shape)
        for x, atom in zip(arrays, eqn.invars, strict=True)
    ]
    found = eqn.primitive.bind(*same, **eqn.params)
    return list(found) if eqn.primitive.multiple_results else [found]


def _form(eqn: Any, operands: Sequence[_Value]) -> Form:  # noqa: PLR0911 - a table of cases
    """What is known of a result where an element has no gradient."""
    name = eqn.primitive.name
    forms = [value.form for value in operands]
    first, last = forms[0], forms[-1]
    if name in {"copy", "copy_p", "stop_gradient"}:
        return first
    if name == "convert_element_type" and eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype:
        return first
    if name in _ZERO_TO_ZERO:
        return "zero" if first == "zero" else None
    if name == "integer_pow":
        return "zero" if first == "zero" and eqn.params["y"] > 0 else None
    if name == "mul":
        return "zero" if "zero" in forms else None
    if name == "div":
        return "zero" if first == "zero" else None
    if name in {"add", "add_any", "sub"} and last == "zero":
        return first
    if name in {"add", "add_any"} and first == "zero":
        return last
    if name in {"max", "min"} and _keeps_zero(name, operands):
        return "zero"
    if name == "select_n" and all(form == last for form in forms[1:]):
        return last
    return None


def _keeps_zero(name: str, operands: Sequence[_Value]) -> bool:
    """Whether a bound leaves zero as it is."""
    if all(value.form == "zero" for value in operands):
        return True
    for value, other in zip(operands, reversed(operands), strict=True):
        bound = value.array
        is_known = bound is not None and not isinstance(bound, jax.core.Tracer)
        if other.form == "zero" and value.is_uniform and is_known:
            return bool(bound <= 0 if name == "max" else bound >= 0)
    return False


def _joins(eqn: Any) -> str:
    site = _compat.equation_site(eqn)
    return f"it joins or moves elements (`{eqn.primitive.name}`{f' at {site}' if site else ''})"


def _flat(tree: Any) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return leaves, structure


def _kind(leaf: Any) -> tuple[Any, Any]:
    return (tuple(leaf.shape), leaf.dtype)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))
