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

import jax
import jax.numpy as jnp
import numpy as np

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
        reads_state: Whether an operand is computed from variables or functional state.
        common: A line where something equal on all replicas was added to an operand; None if that
            was nowhere.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    bytes: int
    site: CallSite | None
    is_needed: bool
    reads_state: bool = False
    common: CallSite | None = None


@dataclasses.dataclass(frozen=True)
class Draw:
    """Random numbers that are drawn.

    Attributes:
        shape: Their shape on one replica.
        site: Line of user code.
        varies: Whether each replica draws its own.
        is_constant: Whether it is a constant array of the program instead.
    """

    shape: tuple[int, ...]
    site: CallSite | None
    varies: bool
    is_constant: bool = False


@dataclasses.dataclass(frozen=True)
class Value:
    """What is known of a value.

    Attributes:
        varies: Whether it may differ between replicas.
        meetings: Numbers of the nearest collectives that it depends on.
        draws: Numbers of the mirrored draws that it consists of, row by row.
        is_stacked: Whether it is, outside of the replicas' program, an array of what each has.
        reads_state: Whether it is computed from variables or functional state.
        common: Where something equal on all replicas was added to what differs.
        is_combined: Whether a collective combined what differs, here or before.
    """

    varies: bool = False
    meetings: frozenset[int] = frozenset()
    draws: frozenset[int] = frozenset()
    is_stacked: bool = False
    reads_state: bool = False
    common: CallSite | None = None
    is_combined: bool = False


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
        common: Lines where something equal on all replicas is added to what differs, in program
            order: the forward pass comes first.
    """

    outputs: tuple[Value, ...]
    meetings: tuple[Meeting, ...]
    draws: tuple[Draw, ...]
    laid_over_rows: frozenset[int]
    has_replicas: bool
    common: tuple[CallSite, ...] = ()


def flow_of(traced: Traced, num_state_leaves: int) -> Flow:
    """What flows where in a traced step.

    Args:
        traced: The step.
        num_state_leaves: How many of the first argument leaves are functional state.
    """
    reading = _Reading()
    jaxpr, constants = _compat.opened(traced.jaxpr)
    states = len(traced.variables) + num_state_leaves
    inputs = [Value(reads_state=i < states) for i in range(len(jaxpr.invars))]
    outputs = reading.read(jaxpr, inputs, [reading.constant(x) for x in constants])
    return Flow(
        tuple(outputs),
        tuple(reading.meetings),
        tuple(reading.draws),
        frozenset(reading.laid_over_rows),
        reading.has_replicas,
        tuple(dict.fromkeys(reading.common)),
    )


class _Reading:
    def __init__(self) -> None:
        self.meetings: list[Meeting] = []
        self.draws: list[Draw] = []
        self.laid_over_rows: set[int] = set()
        self.has_replicas = False
        self.common: list[CallSite] = []
        self._is_inside = False
        self._site: CallSite | None = None

    def constant(self, value: Any) -> Value:
        """A constant of the program; one with different rows could be noise that was drawn."""
        if isinstance(value, jax.core.Tracer) or not _has_different_rows(value):
            return _NOTHING
        self.draws.append(Draw(tuple(np.shape(value)), None, varies=False, is_constant=True))
        return Value(draws=frozenset({len(self.draws) - 1}))

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
        if found is None:
            found = [self._combined(eqn, values)] * len(eqn.outvars)
        self._site = outer
        return found

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
        common = joined.common
        if self._is_inside and self._site and _adds_what_is_common(eqn, values):
            self.common.append(self._site)
            common = common or self._site
        return dataclasses.replace(joined, draws=draws, common=common)

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
                any(value.reads_state for value in values),
                _joined(values).common,
            )
        )
        varies = self._is_inside and eqn.primitive.name not in EQUALISING
        reads_state = any(value.reads_state for value in values)
        is_combined = self.meetings[number].is_needed or any(x.is_combined for x in values)
        result = Value(
            varies, frozenset({number}), reads_state=reads_state, is_combined=is_combined
        )
        return [result] * len(eqn.outvars)

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
            Value(
                meetings=value.meetings,
                is_stacked=own,
                reads_state=value.reads_state,
                is_combined=value.is_combined,
            )
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
        result = dataclasses.replace(inputs, meetings=inputs.meetings | inside)
        return [result] * len(eqn.outvars)


def _joined(values: Iterable[Value]) -> Value:
    values = list(values)
    return Value(
        any(value.varies for value in values),
        frozenset().union(*(value.meetings for value in values)),
        frozenset().union(*(value.draws for value in values)),
        any(value.is_stacked for value in values),
        any(value.reads_state for value in values),
        next((value.common for value in values if value.common is not None), None),
        any(value.is_combined for value in values),
    )


def _adds_what_is_common(eqn: Any, values: Sequence[Value]) -> bool:
    """Whether an equation adds what differs between replicas and what is computed on each alike."""
    if eqn.primitive.name not in ("add", "add_any", "sub") or len(values) != 2:  # noqa: PLR2004
        return False
    one, other = values
    mirrored = other if one.varies else one
    # Biases are added to rows; here two terms of one loss, or of one gradient, are.
    alike = eqn.invars[0].aval.shape == eqn.invars[1].aval.shape
    return one.varies != other.varies and mirrored.reads_state and alike


def _has_different_rows(value: Any) -> bool:
    shape = np.shape(value)
    if not shape or shape[0] < 2 or not jnp.issubdtype(value.dtype, jnp.floating):  # noqa: PLR2004
        return False
    rows = np.asarray(value)
    return bool((rows[1:] != rows[:1]).any())
