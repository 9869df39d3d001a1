"""A step on one device, on the rows of batches that the replicas took."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax.step._anew import Elsewhere
from replicax.strategies import Strategy
from replicax.values import Variable

from ._batches import Rows
from ._calls import Call, Moment, Outcome
from ._captured import Captured, as_one, number_of_replicas
from ._compared import Entry, compared
from ._state import (
    Array,
    first_device,
    host_tree,
    host_values,
    on_one,
    on_one_device,
    tree_on_one,
)


@dataclasses.dataclass(frozen=True)
class Taken:
    """One step that was taken on the replicas.

    Attributes:
        label: Which one, for messages.
        before: All state before it.
        take: What it did; runs it if that was not done.
        rows: The rows of its batch.
        other: A step from the same state with another batch; None where there is none.
    """

    label: str
    before: Moment
    take: Callable[[], Outcome]
    rows: Rows
    other: Taken | None = None


@dataclasses.dataclass(frozen=True)
class Hosted:
    """State and results of one step, by name, on the host."""

    state: dict[str, Array]
    aux: dict[str, Array]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One step on the replicas and on one device.

    Attributes:
        taken: The step.
        before: State before it.
        state: The arrays of the state.
        aux: The numbers that it returned.
    """

    taken: Taken
    before: dict[str, Array]
    state: list[Entry]
    aux: list[Entry]

    @property
    def differing(self) -> list[Entry]:
        """What is further apart than the tolerance."""
        return [each for each in (*self.state, *self.aux) if each.differs]

    @property
    def depends_on_order(self) -> bool:
        """Whether one device gives other numbers when the rows come in another order."""
        noisy = [x for x in (*self.state, *self.aux) if x.is_rounding]
        if any(x.is_rounding for x in self.aux):
            return True
        changed = [x for x in self.state if x.scale and not x.is_exact]
        return bool(noisy) and 2 * len(noisy) > len(changed)


class OneDevice:
    """The step on one device, on the rows of batches that the replicas took.

    Args:
        strategy: The strategy.
        call: The step.
        names: The variables that are compared, and their names.
        captured: What holds the number of replicas, and is to hold 1 while the step runs.

    Attributes:
        captured: The same.
    """

    def __init__(
        self,
        strategy: Strategy,
        call: Call,
        names: Mapping[Variable, str],
        captured: Captured | None = None,
    ) -> None:
        self._strategy, self._call, self._names = strategy, call, names
        self.captured: Captured = captured or {}
        self._mesh, self._programs = first_device(strategy), Elsewhere()

    def without_captured_numbers(self) -> OneDevice | None:
        """The same where numbers of replicas that the step took from outside are 1, if it did."""
        found = number_of_replicas(self._call.step, self._strategy.num_replicas_in_sync)
        if not found or self.captured:
            return None
        return OneDevice(self._strategy, self._call, self._names, found)

    def compare(self, taken: Taken, coarsest: int) -> Comparison:
        """Run the same step on one device.

        Raises:
            NotComparable: One device cannot do the same.
        """
        call, one = self._call, self._mesh
        before, replicas = self._by_name(taken.before), self._hosted(taken.take())
        start, batch = self._start(taken.before), taken.rows.for_one(one)
        with self._entered():
            found = self._hosted(call.run(start, batch))
            backwards = taken.rows.reversed(one)
            reverse = found
            if backwards is not None:
                reverse = self._hosted(call.run(start, backwards))
        state = compared(before, replicas.state, found.state, reverse.state, coarsest)
        aux = compared({}, replicas.aux, found.aux, reverse.aux, coarsest)
        return Comparison(taken, before, state, aux)

    def alone(self, taken: Taken) -> list[Hosted]:
        """What each replica that holds rows would do without the others, from the same state."""
        start = self._start(taken.before)
        with self._entered():
            return [
                self._hosted(self._call.run(start, taken.rows.of_replica(i, self._mesh)))
                for i, count in enumerate(taken.rows.counts or ())
                if count
            ]

    def steps(self, start: Moment, rows: Sequence[Rows]) -> list[Outcome]:
        """Steps one after the other on one device."""
        outcomes: list[Outcome] = []
        moment = self._start(start)
        with self._entered():
            for each in rows:
                outcomes.append(self._call.run(moment, each.for_one(self._mesh)))
                moment = outcomes[-1].after
        return outcomes

    def _hosted(self, outcome: Outcome) -> Hosted:
        """What a step left behind."""
        aux = host_tree(outcome.aux, "result")
        return Hosted(self._by_name(outcome.after), {k: v for k, v in aux.items() if v.size == 1})

    def _by_name(self, moment: Moment) -> dict[str, Array]:
        found = host_values(moment.variables, self._names)
        return found | (host_tree(moment.tree, "state") if moment.tree is not None else {})

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        with (
            on_one_device(self._strategy, self._mesh, self._programs),
            self._call.on_one_device(),
            as_one(self.captured),
        ):
            yield

    def _start(self, before: Moment) -> Moment:
        variables = on_one(before.variables, self._strategy, self._mesh)
        tree = None if before.tree is None else tree_on_one(before.tree, self._mesh)
        return Moment(variables, tree)


def loss_of(aux: Any) -> float | None:
    """The loss among what a step returned: the first floating number."""
    with_paths, _ = jax.tree_util.tree_flatten_with_path(aux)
    found = []
    for path, leaf in with_paths:
        if getattr(leaf, "shape", None) == () and jnp.issubdtype(leaf.dtype, jnp.floating):
            found.append(("loss" in jax.tree_util.keystr(path).lower(), float(leaf)))
        elif isinstance(leaf, float):
            found.append((False, leaf))
    named = [value for is_named, value in found if is_named]
    return named[0] if named else found[0][1] if found else None
