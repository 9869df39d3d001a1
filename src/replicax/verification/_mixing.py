"""Where a replica mixes its own rows in a way that no mean over the replicas undoes.

A sum over a replica's rows may be summed further over the replicas. A top-k of them, or a sum that
something is divided by, may not. This finds the lines of such operations in the program of a
replica. It is read only where the numbers have shown that something is wrong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from replicax.errors import CallSite
from replicax.step import _compat
from replicax.step._proof import COLLECTIVES
from replicax.step._proof._calls import JAXPR_PARAMETERS, _mentions
from replicax.step._proof._primitives import ONE_BY_ONE
from replicax.step._trace import Traced
from replicax.values import AXIS

_LINEAR = frozenset(
    {
        "add",
        "add_any",
        "broadcast_in_dim",
        "concatenate",
        "convert_element_type",
        "copy",
        "copy_p",
        "cumsum",
        "dynamic_slice",
        "dynamic_update_slice",
        "gather",
        "neg",
        "pad",
        "reduce_sum",
        "reshape",
        "rev",
        "scatter-add",
        "select_n",
        "slice",
        "squeeze",
        "stop_gradient",
        "sub",
        "transpose",
    }
)
_PRODUCTS = frozenset({"dot_general", "mul"})
_ORDERS = frozenset(
    {"argmax", "argmin", "reduce_max", "reduce_min", "reduce_prod", "sort", "top_k"}
)


@dataclasses.dataclass(frozen=True)
class Mixing:
    """Rows that were mixed.

    Attributes:
        op: Name of the primitive that mixed them.
        site: Its line.
        then: Name of the primitive that is not linear in the result; the same where it is it.
        then_site: Its line.
    """

    op: str
    site: CallSite | None
    then: str
    then_site: CallSite | None

    def __str__(self) -> str:
        """The operations, with their lines."""
        if self.then == self.op and self.then_site == self.site:
            return f"`{self.op}` at {self.site}"
        return f"`{self.op}` at {self.site}, then `{self.then}` at {self.then_site}"


@dataclasses.dataclass(frozen=True)
class _Value:
    """What is known of a value in a replica.

    Attributes:
        varies: Whether it may differ between replicas.
        axis: Its axis of rows, if it has one.
        mixed: What mixed the rows that it is computed from, and is linear up to here.
    """

    varies: bool = False
    axis: int | None = None
    mixed: tuple[tuple[str, CallSite | None], ...] = ()


_NOTHING = _Value()


def mixings(traced: Traced) -> tuple[Mixing, ...]:
    """The operations that mix a replica's rows and are not linear, in program order."""
    reading = _Reading()
    jaxpr, _ = _compat.opened(traced.jaxpr)
    reading.read(jaxpr, [_NOTHING] * len(jaxpr.invars))
    return tuple(dict.fromkeys(reading.found))


class _Reading:
    def __init__(self) -> None:
        self.found: list[Mixing] = []
        self._site: CallSite | None = None

    def read(self, jaxpr: Any, inputs: Sequence[_Value]) -> list[_Value]:
        known: dict[Any, _Value] = dict(zip(jaxpr.invars, inputs, strict=True))
        literal = _compat.literal_type()

        def of(x: Any) -> _Value:
            return _NOTHING if isinstance(x, literal) else known.get(x, _NOTHING)

        for eqn in jaxpr.eqns:
            outer, self._site = self._site, _compat.equation_site(eqn) or self._site
            values = self._through(eqn, [of(x) for x in eqn.invars])
            known.update(zip(eqn.outvars, values, strict=True))
            self._site = outer
        return [of(x) for x in jaxpr.outvars]

    def _through(self, eqn: Any, values: Sequence[_Value]) -> list[_Value]:
        name = eqn.primitive.name
        if name == "shard_map":
            split = _mentions(eqn.params, "in", AXIS)
            # The rows of each replica stand behind the axis of the replicas.
            inner = [_Value(own, 1 if own else None) for own in split]
            self.read(_compat.opened(eqn.params["jaxpr"])[0], inner)
            return [_NOTHING] * len(eqn.outvars)
        if name in COLLECTIVES:
            return [_NOTHING] * len(eqn.outvars)
        if name in ONE_BY_ONE:
            return list(values)
        names = JAXPR_PARAMETERS.get(name, ())
        called = next((eqn.params[key] for key in names if key in eqn.params), None)
        if called is not None:
            jaxpr, _ = _compat.opened(called)
            if len(jaxpr.invars) == len(values):
                return self.read(jaxpr, values)
        return [self._computed(eqn, values)] * len(eqn.outvars)

    def _computed(self, eqn: Any, values: Sequence[_Value]) -> _Value:
        name, site = eqn.primitive.name, self._site
        pending = tuple(dict.fromkeys(one for value in values for one in value.mixed))
        if pending and not _is_linear(name, values):
            self.found += [Mixing(*one, name, site) for one in pending]
            pending = ()
        axis, mixes = _axis(eqn, values)
        if mixes and (name in _ORDERS or mixes > 1):
            self.found.append(Mixing(name, site, name, site))
        elif mixes:
            pending = pending or ((name, site),)
        return _Value(any(value.varies for value in values), axis, pending)


def _is_linear(name: str, values: Sequence[_Value]) -> bool:
    """Whether the result is linear in the operands whose rows were mixed."""
    if name == "select_n":
        return not values[0].mixed
    if name in _PRODUCTS:
        return sum(value.varies for value in values) < 2  # noqa: PLR2004 - a product of two
    if name == "div":
        return not values[1].mixed
    return name in _LINEAR


# -- the axis of rows ------------------------------------------------------------------------------


def _axis(eqn: Any, values: Sequence[_Value]) -> tuple[int | None, int]:
    """The axis of rows of the result, and whether rows were mixed: 2 if rows with rows."""
    found = next(((i, v.axis) for i, v in enumerate(values) if v.axis is not None), None)
    if found is None:
        return None, 0
    number, axis = found
    name, params, shape = eqn.primitive.name, eqn.params, eqn.invars[number].aval.shape
    if name == "dot_general":
        return _of_product(params["dimension_numbers"], values, eqn)
    if name in ("sort", "top_k") or name.startswith("cum"):
        last = len(shape) - 1
        over = params.get("dimension", params.get("axis", last))
        return (None, 1) if over == axis else (axis, 0)
    if "axes" in params:
        axes = params["axes"]
        return (None, 1) if axis in axes else (axis - sum(one < axis for one in axes), 0)
    moved = _MOVES.get(name)
    after = axis if moved is None else moved(axis, params, shape)
    out = eqn.outvars[0].aval.shape
    is_kept = after is not None and after < len(out) and out[after] == shape[axis]
    return (after if is_kept else None), 0


def _of_product(numbers: Any, values: Sequence[_Value], eqn: Any) -> tuple[int | None, int]:
    (contracted, batched) = numbers
    places, is_contracted = [], False
    offset = len(batched[0])
    for side, value in enumerate(values):
        axis, rank = value.axis, len(eqn.invars[side].aval.shape)
        free = [i for i in range(rank) if i not in contracted[side] and i not in batched[side]]
        if axis is not None and axis in contracted[side]:
            is_contracted = True
        elif axis is not None and axis in batched[side]:
            places.append(list(batched[side]).index(axis))
        elif axis is not None:
            places.append(offset + free.index(axis))
        offset += len(free)
    if is_contracted:
        return None, 1
    distinct = sorted(set(places))
    return distinct[0], len(distinct) if len(distinct) > 1 else 0


def _reshaped(axis: int, params: Any, shape: Sequence[int]) -> int | None:
    before, sizes = math.prod(shape[:axis]), params["new_sizes"]
    places = [i for i in range(len(sizes)) if math.prod(sizes[:i]) == before]
    return next((i for i in places if sizes[i] == shape[axis]), None)


_MOVES: dict[str, Callable[[int, Any, Sequence[int]], int | None]] = {
    "broadcast_in_dim": lambda axis, params, _: params["broadcast_dimensions"][axis],
    "reshape": _reshaped,
    "squeeze": lambda axis, params, _: axis - sum(one < axis for one in params["dimensions"]),
    "transpose": lambda axis, params, _: tuple(params["permutation"]).index(axis),
}
