"""Which leaves an optax transformation treats alike: those with the same expressions.

The program of its update is run on numbers that stand for expressions: an operation on expressions
with known numbers has a number, too, and equal ones have the same. What a leaf gives is named by
what it is (its gradient, the second of its states), and not by the leaf; what all leaves share,
such as a step count, by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from replicax.step._element_evaluation import Value
from replicax.step._element_rule import ElementRule


def kinds_of_leaves(rule: ElementRule, states_of: Sequence[Sequence[int]]) -> list[Hashable]:
    """Something for each leaf that is equal where two are updated by the same expressions.

    Args:
        rule: The rule for elements.
        states_of: For each leaf the numbers of the leaves of the state that go with it.
    """
    expressions = _Expressions()
    number, dtypes = expressions.number, [leaf.dtype for leaf in rule.leaves]
    slots = {i: j for states in states_of for j, i in enumerate(states)}
    scalar = {k for k, leaf in enumerate(rule.leaves) if leaf.ndim == 0}
    found = rule.evaluated(
        [number("gradient", x, k if k in scalar else None) for k, x in enumerate(dtypes)],
        [
            number("state", leaf.dtype, slots[i])
            if rule.leaf_of[i] is not None
            else number("common state", i)
            for i, leaf in enumerate(rule.state_leaves)
        ],
        [number("parameter", x, k if k in scalar else None) for k, x in enumerate(dtypes)],
        expressions.of_elements,
        expressions.of_others,
    )
    updates, new = found[: len(dtypes)], found[len(dtypes) :]
    return [
        (
            expressions.of(updates[k], dtypes[k]),
            *(expressions.of(new[i], rule.state_leaves[i].dtype) for i in states),
        )
        for k, states in enumerate(states_of)
    ]


@dataclasses.dataclass(frozen=True)
class _Number:
    """What stands for an expression. Of its size nothing is known."""

    number: int

    def __le__(self, other: object) -> bool:
        return False

    __ge__ = __le__


class _Expressions:
    """Numbers of expressions."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Number] = {}
        self._kept: list[Any] = []  # An object whose address is in a key must stay alive.

    def number(self, *key: Hashable) -> _Number:
        return self._known.setdefault(key, _Number(len(self._known)))

    def of(self, value: Any, dtype: Any) -> _Number:
        """The number of a value that is one, or a constant."""
        if isinstance(value, _Number):
            return value
        is_key = not isinstance(dtype, np.dtype)
        if is_key or isinstance(value, jax.core.Tracer) or np.ndim(value):
            return self.number("object", self._address(value))
        return self.number("constant", dtype, np.asarray(value, dtype).tobytes())

    def of_elements(self, eqn: Any, arrays: Sequence[Any]) -> list[_Number]:
        """Those of the results of an elementwise equation."""
        dtypes = [atom.aval.dtype for atom in eqn.invars]
        operands = tuple(self.of(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True))
        return self._results(eqn, operands)

    def of_others(self, eqn: Any, operands: Sequence[Value]) -> list[_Number]:
        """Those of the results of an equation without elements."""
        avals = [atom.aval for atom in eqn.invars]
        found = [self.of(x.array, a.dtype) for x, a in zip(operands, avals, strict=True)]
        shapes = tuple(aval.shape for aval in avals)
        return self._results(eqn, (*found, shapes))

    def _results(self, eqn: Any, operands: tuple[Hashable, ...]) -> list[_Number]:
        parameters: Hashable = tuple(sorted(eqn.params.items()))
        try:
            hash(parameters)
        except TypeError:
            parameters = self._address(eqn)
        key = (eqn.primitive, parameters, operands)
        return [self.number(key, place) for place in range(len(eqn.outvars))]

    def _address(self, value: Any) -> int:
        self._kept.append(value)
        return id(value)
