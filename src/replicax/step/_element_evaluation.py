"""One pass through the program of a transformation, on parts of its leaves; see `_element_rule`."""

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

_ELEMENTWISE = ARITHMETIC | {
    "convert_element_type",
    "copy",
    "copy_p",
    "optimization_barrier",
    "reduce_precision",
    "stop_gradient",
}
_REARRANGING = frozenset(
    {"broadcast_in_dim", "expand_dims", "reshape", "rev", "slice", "squeeze", "transpose"}
)
_ZERO_TO_ZERO = frozenset(
    {
        *("abs", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "conj", "convert_element_type"),
        *("erf", "expm1", "floor", "imag", "log1p", "neg", "real", "reduce_precision", "round"),
        *("sign", "sin", "sinh", "sqrt", "square", "tan", "tanh"),
    }
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
class Value:
    """A value of the program.

    Attributes:
        array: A scalar, elements of a leaf, or the whole of something else; None in the analysis.
        group: Which elements they are; None if the value does not depend on elements.
        is_uniform: Whether all elements have the same number, which then is a scalar.
        form: What is known where there is no gradient.
        is_linear: Whether it is a gradient times what is the same for all elements, or a sum of
            such, so that it may be computed for each part of a sum of gradients.
    """

    array: Any
    group: int | None = None
    is_uniform: bool = False
    form: Form = None
    is_linear: bool = False


class Groups:
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


class Evaluation:
    """One pass through a program.

    Args:
        groups: Which elements go together.
        bind: Computes an elementwise equation; None to learn what the program does without
            computing. What would be computed from elements that are left out (None) is None.
        bind_other: Computes an equation without elements from the whole operands; by default as
            it stands.
    """

    def __init__(
        self,
        groups: Groups,
        bind: Callable[..., Any] | None,
        bind_other: Callable[..., Any] | None = None,
    ) -> None:
        self._groups, self._bind = groups, bind
        self._bind_other = bind_other or _computed_whole

    def run(self, jaxpr: Any, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of a jaxpr."""
        inner, constants = _compat.opened(jaxpr)
        values: dict[Any, Value] = {}
        for variable, constant in zip(inner.constvars, constants, strict=True):
            values[variable] = Value(constant, None, np.ndim(constant) == 0)
        values.update(zip(inner.invars, inputs, strict=True))

        literal: Any = _compat.literal_type()

        def read(atom: Any) -> Value:
            if isinstance(atom, literal):
                is_zero = np.ndim(atom.val) == 0 and bool(np.asarray(atom.val) == 0)
                return Value(atom.val, None, np.ndim(atom.val) == 0, "zero" if is_zero else None)
            return values[atom]

        for eqn in inner.eqns:
            outputs = self._equation(eqn, [read(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in inner.outvars]

    def _equation(self, eqn: Any, operands: list[Value]) -> list[Value]:
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
        if self._bind is not None and all(value.array is not None for value in operands):
            arrays = self._bind(eqn, [value.array for value in operands])
        is_linear = _is_linear(eqn.primitive.name, operands)
        return [Value(array, group, group is None, form, is_linear) for array in arrays]

    def _rearranged(self, eqn: Any, operands: list[Value]) -> Value:
        """Scalars stay scalars; elements must keep their places."""
        value = operands[0]
        is_same = eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape
        if value.group is None or (
            is_same and eqn.primitive.name in {"broadcast_in_dim", "reshape"}
        ):
            return value
        raise NotElementwise(_joins(eqn))

    def _other(self, eqn: Any, operands: list[Value]) -> list[Value]:
        """An equation without elements, computed as it stands."""
        arrays = [None] * len(eqn.outvars)
        if self._bind is not None:
            arrays = self._bind_other(eqn, operands)
        return [
            Value(array, None, variable.aval.shape == ())
            for array, variable in zip(arrays, eqn.outvars, strict=True)
        ]


def _computed_whole(eqn: Any, operands: Sequence[Value]) -> list[Any]:
    whole = [
        jnp.broadcast_to(value.array, atom.aval.shape) if value.is_uniform else value.array
        for value, atom in zip(operands, eqn.invars, strict=True)
    ]
    found = eqn.primitive.bind(*whole, **eqn.params)
    return list(found) if eqn.primitive.multiple_results else [found]


def computed(eqn: Any, arrays: Sequence[Any]) -> list[Any]:
    """An elementwise equation on elements in the shape that they have here."""
    shape = next((jnp.shape(x) for x in arrays if jnp.ndim(x)), ())
    same = [
        jnp.broadcast_to(jnp.asarray(x, dtype=atom.aval.dtype), shape)
        for x, atom in zip(arrays, eqn.invars, strict=True)
    ]
    found = eqn.primitive.bind(*same, **eqn.params)
    return list(found) if eqn.primitive.multiple_results else [found]


def _form(eqn: Any, operands: Sequence[Value]) -> Form:  # noqa: PLR0911 - a table of cases
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


def _is_linear(name: str, operands: Sequence[Value]) -> bool:
    linear = [value.is_linear for value in operands]
    if name in {"add", "add_any", "copy", "copy_p", "neg", "stop_gradient", "sub"}:
        return all(linear)
    is_scaled = linear[:1] == [True] and all(value.group is None for value in operands[1:])
    if name == "mul" and linear[-1:] == [True]:
        return operands[0].group is None
    return is_scaled and name in {"div", "mul"}


def _keeps_zero(name: str, operands: Sequence[Value]) -> bool:
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
