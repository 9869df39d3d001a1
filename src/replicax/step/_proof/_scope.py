"""One pass over the equations of a jaxpr, cached for nested jaxprs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from jax.core import Tracer

from replicax.step import _compat

from ._kinds import Control, Kind, ProvedCollective, Source, join
from ._primitives import ALLOCATING, POINTWISE
from ._refusals import refuse_construct, refuse_leaked_tracer, refuse_unreadable

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

Rule: TypeAlias = "Callable[[Scope, JaxprEqn, list[Kind]], Sequence[Kind]]"
"""Kinds of the results of an equation from the kinds of its operands."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """What one nested jaxpr does, for given kinds of its inputs.

    Attributes:
        outputs: Kind of each output.
        inputs: Kind of each input afterwards; only references change theirs.
        collectives: Collectives of one run, in program order.
    """

    outputs: tuple[Kind, ...]
    inputs: tuple[Kind, ...]
    collectives: tuple[ProvedCollective, ...]


class Pass:
    """What all scopes of one proof share.

    Attributes:
        axis_name: The mesh axis of the replicas.
        find_rule: The rule of a primitive by name; it raises where there is none.
    """

    def __init__(self, axis_name: str, find_rule: Callable[[JaxprEqn], Rule]) -> None:
        """Starts with nothing read."""
        self.axis_name = axis_name
        self.find_rule = find_rule
        # A key holds ids, so the value keeps alive what they are ids of.
        self._readings: dict[Any, tuple[Reading, Any]] = {}
        self._controls: dict[tuple[int, int], tuple[Control, Any]] = {}

    def read(self, jaxpr: Any, kinds: Sequence[Kind], control: Control | None) -> Reading:
        """Reads a nested jaxpr, or recalls it from before."""
        key = (id(jaxpr), *map(id, kinds), id(control))
        known = self._readings.get(key)
        if known is None:
            reading = self._read(jaxpr, kinds, control)
            known = self._readings[key] = (reading, (jaxpr, tuple(kinds), control))
        return known[0]

    def control(self, source: Source, eqn: JaxprEqn) -> Control:
        """The control of a branching equation; the same object for the same cause."""
        key = (id(source), id(eqn))
        known = self._controls.get(key)
        if known is None:
            made = Control(source, eqn.primitive.name, _compat.equation_site(eqn))
            known = self._controls[key] = (made, (source, eqn))
        return known[0]

    def _read(self, jaxpr: Any, kinds: Sequence[Kind], control: Control | None) -> Reading:
        inner, constants = _compat.opened(jaxpr)
        scope = Scope(self, control)
        scope.define(inner.constvars, _constant_kinds(inner.constvars, constants))
        scope.define(inner.invars, kinds)
        scope.run(inner)
        return scope.reading(inner)


class Scope:
    """The variables of one jaxpr and their kinds while its equations are read."""

    __slots__ = ("collectives", "control", "env", "shared")

    def __init__(self, shared: Pass, control: Control | None) -> None:
        """Starts without variables."""
        self.shared = shared
        self.control = control
        self.env: dict[Any, Kind] = {}
        self.collectives: list[ProvedCollective] = []

    def define(self, variables: Sequence[Any], kinds: Sequence[Kind]) -> None:
        """Gives variables their kinds."""
        self.env.update(zip(variables, kinds, strict=True))

    def run(self, jaxpr: Any) -> None:
        """Reads the equations in order."""
        env = self.env
        literal = _compat.literal_type()
        for eqn in jaxpr.eqns:
            try:
                if eqn.primitive.name in POINTWISE:  # The common case, kept short.
                    kind = None
                    for atom in eqn.invars:
                        if type(atom) is not literal and (found := env[atom]) is not None:
                            kind = kind or found
                    for variable in eqn.outvars:
                        env[variable] = kind
                    continue
                kinds = self.kinds(eqn.invars)
            except KeyError:
                name = f"`{eqn.primitive.name}`"
                refuse_leaked_tracer(name, _compat.equation_site(eqn))
            self._apply(eqn, kinds)

    def kinds(self, atoms: Iterable[Any]) -> list[Kind]:
        """The kinds of variables and literals."""
        literal = _compat.literal_type()
        return [None if type(atom) is literal else self.env[atom] for atom in atoms]

    def reading(self, jaxpr: Any) -> Reading:
        """Sums up what was read."""
        try:
            outputs = self.kinds(jaxpr.outvars)
        except KeyError:
            refuse_leaked_tracer("a result", None)
        return Reading(
            tuple(outputs), tuple(self.env[v] for v in jaxpr.invars), tuple(self.collectives)
        )

    def enter(self, jaxpr: Any, kinds: Sequence[Kind], control: Control | None = None) -> Reading:
        """Reads a nested jaxpr under this scope's control, or a further one."""
        return self.shared.read(jaxpr, kinds, self.control or control)

    def emit(self, reading: Reading, *, times: int | None = 1, loop: bool = False) -> None:
        """Takes over the collectives of a nested jaxpr that runs `times` times."""
        if times == 1 and not loop:
            self.collectives.extend(reading.collectives)
        else:
            self.collectives.extend(c.repeated(times, loop=loop) for c in reading.collectives)

    def write(self, reference: Any, kind: Kind, *, whole: bool = False) -> None:
        """Notes that a reference was written, wholly or in part.

        Under a condition that varies the write may happen on some replicas alone, so even a
        mirrored value makes the reference varying.
        """
        if self.control is not None:
            kind = join([kind, self.control.source])
        self.env[reference] = kind if whole else join([self.env[reference], kind])

    def settle(self, reference: Any, kind: Kind, *, may_skip: bool = False) -> bool:
        """Takes over the kind that a nested jaxpr left a reference in; whether it changed."""
        before = self.env[reference]
        after = join([before, kind]) if may_skip else kind
        self.env[reference] = after
        return (before is None) != (after is None)

    def _apply(self, eqn: JaxprEqn, kinds: list[Kind]) -> None:
        rule = self.shared.find_rule(eqn)
        name = eqn.primitive.name
        if name not in ALLOCATING:
            _refuse_second_names(eqn)
        try:
            self.define(eqn.outvars, rule(self, eqn, kinds))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # Another release of jax may name its parameters in another way.
            refuse_unreadable(name, _compat.equation_site(eqn), error)


def references(eqn: JaxprEqn) -> list[int]:
    """Positions of the operands that are mutable references."""
    return [i for i, atom in enumerate(eqn.invars) if _compat.is_reference(atom.aval)]


def _refuse_second_names(eqn: JaxprEqn) -> None:
    """Each reference must have one name in a scope, so that a write through it is seen.

    A `while` may give the same one to its condition and its body; its rule takes care of that.
    """
    name = eqn.primitive.name
    given = [id(eqn.invars[i]) for i in references(eqn)]
    if len(set(given)) != len(given) and name != "while":
        why = "it gets one mutable reference twice."
        refuse_construct(name, _compat.equation_site(eqn), why)
    if any(_compat.is_reference(variable.aval) for variable in eqn.outvars):
        why = "it returns a mutable reference, which could be a second name of another one."
        refuse_construct(name, _compat.equation_site(eqn), why)


def _constant_kinds(variables: Sequence[Any], values: Sequence[object]) -> list[Kind]:
    """Constants of nested jaxprs are concrete arrays, so they are equal on all replicas."""
    if any(isinstance(v, Tracer) for v in values) or len(values) != len(variables):
        refuse_leaked_tracer("a nested function", None)
    if any(_compat.is_reference(v.aval) for v in variables):
        why = "it closes over a mutable reference; pass the reference as an argument."
        refuse_construct("a nested function", None, why)
    return [None] * len(values)
