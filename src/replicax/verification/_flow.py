"""What flows where in the program of a step: through which collectives, and which random numbers.

The proof says what is equal on all replicas. This says what made it so: for each result, the
collectives that its value depends on, which of them combine what really differs, and which random
numbers, drawn alike on all replicas, are laid over the rows of each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from replicax.errors import CallSite
from replicax.step import _compat
from replicax.step._proof import COLLECTIVES
from replicax.step._proof._calls import JAXPR_PARAMETERS, _mentions
from replicax.step._proof._primitives import ARITHMETIC, EQUALISING
from replicax.step._trace import Traced
from replicax.values import AXIS

_DRAWING = frozenset({"random_bits", "random_gamma", "rng_bit_generator"})
# Outside of the replicas' program XLA makes a collective of these.
_REDUCING = frozenset(
    {
        "dot_general",
        "reduce_and",
        "reduce_max",
        "reduce_min",
        "reduce_or",
        "reduce_prod",
        "reduce_sum",
    }
)
# Through these a drawn array keeps its rows.
_KEEPING = ARITHMETIC | {
    "broadcast_in_dim",
    "convert_element_type",
    "bitcast_convert_type",
    "copy",
    "reshape",
    "stop_gradient",
    "squeeze",
    "expand_dims",
    "erf_inv",
}


@dataclasses.dataclass(frozen=True)
class Meeting:
    """One collective.

    Attributes:
        op: Name of the primitive.
        shapes: Shape of each operand on one replica.
        bytes: Bytes that one replica puts in.
        site: Line of user code.
        is_needed: Whether an operand may differ between the replicas.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    bytes: int
    site: CallSite | None
    is_needed: bool


@dataclasses.dataclass(frozen=True)
class Draw:
    """Random numbers that are drawn.

    Attributes:
        shape: Their shape on one replica.
        site: Line of user code.
        varies: Whether each replica draws its own.
    """

    shape: tuple[int, ...]
    site: CallSite | None
    varies: bool


@dataclasses.dataclass(frozen=True)
class Value:
    """What is known of a value.

    Attributes:
        varies: Whether it may differ between replicas.
        meetings: Numbers of the nearest collectives that it depends on.
        draws: Numbers of the mirrored draws that it consists of, row by row.
        is_stacked: Whether it is, outside of the replicas' program, an array of what each has.
    """

    varies: bool = False
    meetings: frozenset[int] = frozenset()
    draws: frozenset[int] = frozenset()
    is_stacked: bool = False


_NOTHING = Value()


@dataclasses.dataclass(frozen=True)
class Flow:
    """What was found.

    Attributes:
        outputs: Of each output of the program.
        meetings: The collectives, in program order.
        draws: The random numbers.
        laid_over_rows: Numbers of draws, alike on all replicas, that are combined with rows that
            differ.
        has_replicas: Whether anything runs on the replicas.
    """

    outputs: tuple[Value, ...]
    meetings: tuple[Meeting, ...]
    draws: tuple[Draw, ...]
    laid_over_rows: frozenset[int]
    has_replicas: bool


def flow_of(traced: Traced) -> Flow:
    """What flows where in a traced step."""
    reading = _Reading()
    jaxpr, constants = _compat.opened(traced.jaxpr)
    inputs = [Value(varies=False)] * len(jaxpr.invars)
    outputs = reading.read(jaxpr, inputs, [_NOTHING] * len(constants))
    return Flow(
        tuple(outputs),
        tuple(reading.meetings),
        tuple(reading.draws),
        frozenset(reading.laid_over_rows),
        reading.has_replicas,
    )


class _Reading:
    def __init__(self) -> None:
        self.meetings: list[Meeting] = []
        self.draws: list[Draw] = []
        self.laid_over_rows: set[int] = set()
        self.has_replicas = False
        self._is_inside = False
        self._site: CallSite | None = None

    def read(
        self, jaxpr: Any, inputs: Sequence[Value], constants: Sequence[Value] = ()
    ) -> list[Value]:
        """The values of the outputs, for those of the inputs."""
        known: dict[Any, Value] = dict(zip(jaxpr.constvars, constants, strict=False))
        known.update(zip(jaxpr.invars, inputs, strict=True))
        literal = _compat.literal_type()

        def of(x: Any) -> Value:
            return _NOTHING if isinstance(x, literal) else known.get(x, _NOTHING)

        for eqn in jaxpr.eqns:
            values = self._through(eqn, [of(x) for x in eqn.invars])
            known.update(zip(eqn.outvars, values, strict=True))
        return [of(x) for x in jaxpr.outvars]

    def _through(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        name = eqn.primitive.name
        outer, self._site = self._site, _compat.equation_site(eqn) or self._site
        rule = self._rule(name, values)
        found = None if rule is None else rule(eqn, values)
        if found is None:
            found = self._called(eqn, values)
        self._site = outer
        return [self._combined(eqn, values)] * len(eqn.outvars) if found is None else found

    def _rule(self, name: str, values: Sequence[Value]) -> Any:
        """What is known of a primitive."""
        if name == "shard_map":
            return self._mapped
        if name == "axis_index":
            return lambda eqn, _: [Value(varies=True)] * len(eqn.outvars)
        if name in ("scan", "while", "cond"):
            return self._controlled
        if self._is_inside:
            return self._met if name in COLLECTIVES else self._drawn if name in _DRAWING else None
        reduces = name in _REDUCING and any(value.is_stacked for value in values)
        return self._reduced if reduces else None

    def _reduced(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        """Outside of the replicas' program: what each has is combined."""
        return self._met(eqn, [dataclasses.replace(x, varies=x.is_stacked) for x in values])

    def _combined(self, eqn: Any, values: Sequence[Value]) -> Value:
        joined = _joined(values)
        draws: frozenset[int] = frozenset()
        if joined.draws and eqn.primitive.name in _KEEPING:
            draws = joined.draws
            if any(value.varies and not value.draws for value in values):
                self._note_overlay(eqn, values)
                draws = frozenset()
        return dataclasses.replace(joined, draws=draws)

    def _note_overlay(self, eqn: Any, values: Sequence[Value]) -> None:
        """Random numbers meet what varies: are they numbers of its rows?"""
        varying = [x.aval.shape for x, v in zip(eqn.invars, values, strict=True) if v.varies]
        for number in _joined(values).draws:
            shape = self.draws[number].shape
            if any(
                len(shape) >= 1 and rows and shape[0] == rows[0] > 1 and len(shape) == len(rows)
                for rows in varying
            ):
                self.laid_over_rows.add(number)

    def _drawn(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        joined = _joined(values)
        shape = tuple(eqn.params.get("shape") or eqn.outvars[-1].aval.shape)
        number = len(self.draws)
        self.draws.append(Draw(shape, self._site, joined.varies))
        draws = frozenset() if joined.varies else frozenset({number})
        return [dataclasses.replace(joined, draws=draws)] * len(eqn.outvars)

    def _met(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        number = len(self.meetings)
        avals = [x.aval for x in eqn.invars]
        self.meetings.append(
            Meeting(
                eqn.primitive.name,
                tuple(tuple(aval.shape) for aval in avals),
                sum(math.prod(a.shape) * getattr(a.dtype, "itemsize", 0) for a in avals),
                self._site,
                any(value.varies for value in values),
            )
        )
        varies = self._is_inside and eqn.primitive.name not in EQUALISING
        return [Value(varies, frozenset({number}))] * len(eqn.outvars)

    def _mapped(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        """The replicas' own program: what the specs split over them varies inside."""
        self.has_replicas = True
        split = _mentions(eqn.params, "in", AXIS)
        inner = [
            dataclasses.replace(value, varies=value.varies or own)
            for value, own in zip(values, split, strict=True)
        ]
        was_inside, self._is_inside = self._is_inside, True
        jaxpr, constants = _compat.opened(eqn.params["jaxpr"])
        outputs = self.read(jaxpr, inner, [_NOTHING] * len(constants))
        self._is_inside = was_inside
        # Outside, an array of all replicas' values is one value.
        apart = _mentions(eqn.params, "out", AXIS)
        return [
            Value(meetings=value.meetings, is_stacked=own)
            for value, own in zip(outputs, apart, strict=True)
        ]

    def _called(self, eqn: Any, values: Sequence[Value]) -> list[Value] | None:
        """Through an equation that runs a jaxpr once on its own operands."""
        names = JAXPR_PARAMETERS.get(eqn.primitive.name, ())
        found = next((eqn.params[name] for name in names if name in eqn.params), None)
        if found is None:
            return None
        jaxpr, constants = _compat.opened(found)
        if not hasattr(jaxpr, "eqns") or len(jaxpr.invars) != len(values):
            return None
        return self.read(jaxpr, values, [_NOTHING] * len(constants))

    def _controlled(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        """Loops and branches: each result depends on all that goes in, and on all inside."""
        joined = _joined(values)
        inputs = dataclasses.replace(joined, draws=frozenset())
        first = len(self.meetings)
        for found in _compat.nested_jaxprs(eqn):
            jaxpr, constants = _compat.opened(found)
            outputs = self.read(jaxpr, [inputs] * len(jaxpr.invars), [_NOTHING] * len(constants))
            inputs = _joined([inputs, *outputs])
        inside = frozenset(range(first, len(self.meetings)))
        result = Value(inputs.varies, inputs.meetings | inside, is_stacked=inputs.is_stacked)
        return [result] * len(eqn.outvars)


def _joined(values: Iterable[Value]) -> Value:
    values = list(values)
    return Value(
        any(value.varies for value in values),
        frozenset().union(*(value.meetings for value in values)),
        frozenset().union(*(value.draws for value in values)),
        any(value.is_stacked for value in values),
    )
