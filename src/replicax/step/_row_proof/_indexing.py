"""`gather` and `scatter`: reads and writes at places that are computed.

Rows stay rows where each row reads or writes at places of its own: they come as batch axes, whole
windows, or as `x[jnp.arange(rows), i]`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from replicax.step import _compat

from ._elementwise import mixed
from ._states import (
    Dirty,
    Filled,
    Known,
    Mark,
    Parts,
    State,
    Status,
    Unknown,
    collapsed,
    filling,
    made,
    same,
)

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

    from ._scope import Rule, Scope


@dataclasses.dataclass(frozen=True)
class _Places:
    """The indices: one state for each number of an index vector, and which are rows themselves.

    Attributes:
        components: State of each number of the index vectors.
        shape: Shape of the indices; the last axis is that of the vectors.
    """

    components: tuple[Known, ...]
    shape: tuple[int, ...]

    def own_rows(self, number: int, length: int) -> int | None:
        """The axis along which a component counts 0, 1, 2, ..., if its length is that."""
        role = self.components[number].role
        if role is None or role[0] != "index" or role[1] is None:
            return None
        return role[1] if self.shape[role[1]] == length else None

    def status(self, axis: int, identities: set[int]) -> Status | None:
        """What stands at padded rows along an axis, in any component but identities."""
        found = [state.at(axis) for i, state in enumerate(self.components) if i not in identities]
        for wanted in (Mark.UNSURE, Mark.ROWS):
            if wanted in found:
                return wanted
        return next((status for status in found if status is not None), None)

    def axes(self) -> set[int]:
        """The axes with one entry a row."""
        return {axis for state in self.components for axis, _ in state.axes}

    def is_blind(self, axis: int) -> bool:
        """Whether the places are the same for all rows along an axis."""
        return all(state.is_blind(axis) and not state.may_mask for state in self.components)


def _places(state: State, shape: Sequence[int], length: int) -> _Places | None:
    """None if some component is not known."""
    last = len(shape) - 1
    if isinstance(state, Parts) and state.dimension == last:
        found = [collapsed(part) for size, part in state.parts for _ in range(size)]
    else:
        found = [collapsed(state)] * length
    known = tuple(state for state in found if isinstance(state, Known))
    along = any(isinstance(part.at(last), Mark) for part in known)
    return None if len(known) < len(found) or along else _Places(known, tuple(shape))


def gather(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Windows of an operand, one for each index vector."""
    bad = mixed("gather", [collapsed(state) for state in states])
    operand, shapes = collapsed(states[0]), [scope.shape(atom) for atom in eqn.invars]
    numbers = eqn.params["dimension_numbers"]
    places = _places(states[1], shapes[1], len(numbers.start_index_map))
    if bad is not None or places is None or not isinstance(operand, Known):
        return [bad or Unknown("gather")]
    batch = [d for d in range(len(scope.shape(eqn.outvars[0]))) if d not in numbers.offset_dims]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in range(len(shapes[0])) if axis not in gone]
    found: dict[int, list[Status]] = {}
    identities = set()
    for axis, size in enumerate(shapes[0]):
        status, place = operand.at(axis), None
        if axis in windows and eqn.params["slice_sizes"][axis] == size:
            place = numbers.offset_dims[windows.index(axis)]
        elif axis in numbers.operand_batching_dims:
            pair = numbers.operand_batching_dims.index(axis)
            place = batch[numbers.start_indices_batching_dims[pair]]
        elif axis in numbers.start_index_map:
            number = numbers.start_index_map.index(axis)
            own = places.own_rows(number, size)
            if own is not None:
                place = batch[own]
                identities.add(number)
        if status is not None and place is not None:
            found.setdefault(place, []).append(status)
        elif isinstance(status, Mark):
            return [Unknown("gather")]
    for axis in places.axes():
        status = places.status(axis, identities)
        if status is not None:
            found.setdefault(batch[axis], []).append(_of_index(operand, status))
    axes = {place: _gathered(statuses) for place, statuses in found.items()}
    return [made(axes, [operand, *places.components])]


def _of_index(operand: Known, status: Status) -> Status:
    """What is read at places of padded rows."""
    if operand.value is not None:
        return Filled(operand.value)
    return Filled() if isinstance(status, Filled) else status


def _gathered(statuses: Sequence[Status]) -> Status:
    """Of the operand's rows, then of the places that they read at."""
    first = statuses[0]
    if isinstance(first, Filled) and (len(statuses) == 1 or first.value is not None):
        return first
    if all(isinstance(status, Filled) for status in statuses):
        return Filled()
    return Mark.ROWS if all(status is Mark.ROWS for status in statuses) else Mark.UNSURE


def scatter(scope: Scope, eqn: JaxprEqn, states: Sequence[State]) -> Sequence[State]:
    """Updates go into an operand at computed places, and are added or put there."""
    name, numbers = eqn.primitive.name, eqn.params["dimension_numbers"]
    bad = mixed(name, [collapsed(state) for state in states])
    shapes = [scope.shape(atom) for atom in eqn.invars]
    operand, updates = collapsed(states[0]), collapsed(states[2])
    length = len(numbers.scatter_dims_to_operand_dims)
    places = _places(states[1], shapes[1], length)
    if isinstance(bad, Dirty) and name != "scatter-add":
        bad = Unknown(name)
    if bad is not None or places is None:
        return [bad or Unknown(name)]
    assert isinstance(operand, Known)  # noqa: S101 - else it were `bad`
    assert isinstance(updates, Known)  # noqa: S101
    pairs = _paired(numbers, shapes, places)
    found: dict[int, Status | None] = {}
    for axis in range(len(shapes[0])):
        found[axis] = _written(name, operand, updates, places, axis, pairs.get(axis))
    for problem in _sunk(scope, eqn, updates, places, pairs):
        return [problem]
    return [made(found, [operand, updates, *places.components])]


_Pair: TypeAlias = tuple[int, int | None, set[int]]
"""Axis of the updates, of the indices, and the components that are the rows' own places."""


def _paired(numbers: Any, shapes: Sequence[tuple[int, ...]], places: _Places) -> dict[int, _Pair]:
    """For the axes of the operand that keep their rows: where the rows are in the updates."""
    batch = [a for a in range(len(shapes[2])) if a not in numbers.update_window_dims]
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in range(len(shapes[0])) if axis not in gone]
    pairs: dict[int, _Pair] = {}
    for axis, size in enumerate(shapes[0]):
        if axis in windows:
            own = numbers.update_window_dims[windows.index(axis)]
            if shapes[2][own] == size:
                pairs[axis] = (own, None, set())
        elif axis in numbers.operand_batching_dims:
            pair = numbers.operand_batching_dims.index(axis)
            shared = numbers.scatter_indices_batching_dims[pair]
            pairs[axis] = (batch[shared], shared, set())
        elif axis in numbers.scatter_dims_to_operand_dims:
            number = numbers.scatter_dims_to_operand_dims.index(axis)
            counted = places.own_rows(number, size)
            if counted is not None:
                pairs[axis] = (batch[counted], counted, {number})
    return pairs


def _written(
    name: str, operand: Known, updates: Known, places: _Places, axis: int, pair: _Pair | None
) -> Status | None:
    """What stands at padded rows of the operand after the updates."""
    before = operand.at(axis)
    if pair is None:
        # Clean updates went to places of which nothing is known.
        after: Status = Mark.UNSURE if isinstance(before, Mark) else Filled()
        return None if before is None else after
    own, index, identities = pair
    update = updates.at(own)
    where = None if index is None else places.status(index, identities)
    if before is None and update is None and where is None:
        return None
    old, new = filling(operand, axis), filling(updates, own)
    if old is not None and new is not None:
        if name == "scatter-add" and same(new.value, 0):
            return old  # Zeros, wherever they are added.
        if isinstance(where, Filled) or where is None:
            return old if same(old.value, new.value) and name == "scatter" else Filled()
        return where if old.value is not None and before is None else Mark.UNSURE
    rows = [before, update]
    harmless = all(s is Mark.ROWS or s is None for s in rows)
    return Mark.ROWS if harmless and where in {None, Mark.ROWS} else Mark.UNSURE


def _sunk(
    scope: Scope,
    eqn: JaxprEqn,
    updates: Known,
    places: _Places,
    pairs: dict[int, _Pair],
) -> list[State]:
    """What becomes of the result if rows of the updates are written to common places."""
    name, numbers = eqn.primitive.name, eqn.params["dimension_numbers"]
    shape = scope.shape(eqn.invars[2])
    batch = [axis for axis in range(len(shape)) if axis not in numbers.update_window_dims]
    kept = {own for own, _, _ in pairs.values()}
    identities = set().union(*(numbers for _, _, numbers in pairs.values()))
    problems: list[State] = []
    for own in range(len(shape)):
        if own in kept:
            continue
        index = batch.index(own) if own in batch else None
        where = None if index is None else places.status(index, identities)
        if updates.at(own) is None and where is None:
            continue
        new = filling(updates, own)
        if new is not None and (isinstance(where, Filled) or where is None):
            continue
        if new is not None and name == "scatter-add" and same(new.value, 0):
            continue
        told_apart = where is None and (index is None or not places.is_blind(index))
        masked = Mark.UNSURE in {updates.at(own), where} or isinstance(where, Filled)
        plain = updates.at(own) is None and updates.is_blind(own) and not updates.may_mask
        counts = updates.at(own) is Mark.ROWS or plain
        if name != "scatter-add" or told_apart or masked or not counts:
            problems.insert(0, Unknown(name))
        else:
            site = _compat.equation_site(eqn)
            problems.append(Dirty("sum of the rows by index", site, single=shape[own] == 1))
    return problems[:1]


INDEXING_RULES: dict[str, Rule] = {
    "gather": gather,
    **dict.fromkeys(
        ["scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub"],
        scatter,
    ),
}
