"""One pass over the equations of a jaxpr, cached for nested ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jax.core import Tracer

from replicax.step import _compat

from ._states import CLEAN, Known, State, Unknown, constant

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

Rule: TypeAlias = "Callable[[Scope, JaxprEqn, Sequence[State]], Sequence[State]]"
"""States of the results of an equation from the states of its operands."""


class Pass:
    """What all scopes of one pass share.

    Attributes:
        axis_name: The mesh axis of the replicas.
        capacity: Rows of one replica, with padding.
        global_rows: Rows of all replicas, with padding.
        find_rule: The rule of an equation.
        is_strict: Whether a rule that fails raises, as tests want it. Otherwise nothing is known
            of its results: another release of jax may name parameters in another way.
    """

    def __init__(
        self,
        axis_name: str,
        capacity: int,
        num_replicas: int,
        find_rule: Callable[[JaxprEqn], Rule],
        *,
        is_strict: bool = False,
    ) -> None:
        self.axis_name = axis_name
        self.capacity = capacity
        self.global_rows = capacity * num_replicas
        self.find_rule = find_rule
        self.is_strict = is_strict
        # A key holds an id, so the value keeps alive what it is the id of.
        self._readings: dict[Any, tuple[list[State], Any]] = {}
        self._expanded: dict[int, tuple[Any, Any]] = {}

    def read(self, jaxpr: Any, states: Sequence[State]) -> list[State]:
        """States of the outputs of a nested jaxpr, for given states of its inputs."""
        key = (id(jaxpr), tuple(states))
        known = self._readings.get(key)
        if known is None:
            known = self._readings[key] = (Scope(self).run(jaxpr, states), jaxpr)
        return known[0]

    def expanded(self, eqn: JaxprEqn) -> Any:
        """The jaxpr that a primitive of jax's high level stands for."""
        known = self._expanded.get(id(eqn))
        if known is None:
            known = self._expanded[id(eqn)] = (_compat.expand_high_primitive(eqn), eqn)
        return known[0]


class Scope:
    """The variables of one jaxpr and their states while its equations are read."""

    def __init__(self, shared: Pass) -> None:
        self.shared = shared
        self._env: dict[Any, State] = {}

    def run(self, jaxpr: Any, states: Sequence[State]) -> list[State]:
        """Read the equations in order.

        Returns:
            The states of the outputs.
        """
        inner, constants = _compat.opened(jaxpr)
        self._env.update(zip(inner.constvars, map(_constant_state, constants), strict=True))
        self._env.update(zip(inner.invars, states, strict=True))
        for eqn in inner.eqns:
            found = self._apply(eqn, self.states(eqn.invars))
            self._env.update(zip(eqn.outvars, found, strict=True))
        return self.states(inner.outvars)

    def states(self, atoms: Iterable[Any]) -> list[State]:
        """The states of variables and literals."""
        literal: Any = _compat.literal_type()
        return [
            _constant_state(atom.val) if isinstance(atom, literal) else self._env[atom]
            for atom in atoms
        ]

    @staticmethod
    def shape(atom: Any) -> tuple[int, ...]:
        """The shape of a variable or literal."""
        return tuple(getattr(atom.aval, "shape", ()))

    def _apply(self, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
        name = eqn.primitive.name
        if any(_compat.is_reference(atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
            return [Unknown(name)] * len(eqn.outvars)  # What is read depends on what was written.
        try:
            found = self.shared.find_rule(eqn)(self, eqn, states)
        except Exception:
            if self.shared.is_strict:
                raise
            found = [Unknown(name)] * len(eqn.outvars)
        return found


def _constant_state(value: Any) -> State:
    """Constants come from outside of the replica function, so no padding is in them."""
    is_short = getattr(value, "ndim", 0) <= 1 and getattr(value, "size", 1) <= _SHORT
    if isinstance(value, Tracer) or not (is_short and getattr(value, "is_fully_addressable", True)):
        return CLEAN
    dtype = getattr(value, "dtype", np.dtype(type(value)))
    if not isinstance(dtype, np.dtype):  # Keys.
        return CLEAN
    array = np.asarray(value)
    if array.size and (array == array.flat[0]).all():
        return constant(complex(array.flat[0]) if dtype.kind == "c" else float(array.flat[0]))
    if dtype.kind in "iu" and np.array_equal(array, np.arange(array.size)):
        return Known(role=("index", 0))
    return CLEAN


_SHORT = 1 << 16
"""Constants with more entries are not looked at: they are no places of rows."""
