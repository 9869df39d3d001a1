"""The check of parity: the step gives what one device gives on the same global batch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import Table
from replicax.step._anew import Elsewhere
from replicax.strategies import Strategy
from replicax.values import Variable

from ._batches import Rows
from ._calls import Call, Moment, Outcome
from ._causes import Cause, cause_among_noise, cause_of
from ._compared import Entry, compared, relative_tolerance
from ._program import Program, draws_its_own
from ._report import Finding, Status
from ._state import (
    Array,
    NotComparable,
    first_device,
    host_tree,
    host_values,
    on_one,
    on_one_device,
    tree_on_one,
)

_CHECK = "parity"
_MOST_ROWS = 12


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


class OneDevice:
    """The step on one device, on the rows of batches that the replicas took.

    Args:
        strategy: The strategy.
        call: The step.
        names: The variables that are compared, and their names.
    """

    def __init__(self, strategy: Strategy, call: Call, names: Mapping[Variable, str]) -> None:
        self._strategy, self._call, self._names = strategy, call, names
        self._mesh, self._programs = first_device(strategy), Elsewhere()

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
        ):
            yield

    def _start(self, before: Moment) -> Moment:
        variables = on_one(before.variables, self._strategy, self._mesh)
        tree = None if before.tree is None else tree_on_one(before.tree, self._mesh)
        return Moment(variables, tree)


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


def parity(one: OneDevice, program: Program, steps: Sequence[Taken]) -> Iterator[Finding]:
    """Gradients, updated state and results equal those of one device."""
    coarsest = _narrowest(program, steps)
    for taken in steps:
        try:
            comparison = one.compare(taken, coarsest)
        except NotComparable as reason:
            yield Finding(
                _CHECK, Status.NOT_CHECKED, f"{taken.label} is not compared.", why=f"{reason}."
            )
            continue
        except Exception as error:  # noqa: BLE001 - the user's own code runs here
            yield Finding(
                _CHECK,
                Status.NOT_CHECKED,
                f"{taken.label} cannot be taken on one device: {type(error).__name__}.",
                why=f"On one device, with all rows of the batch, it raised: {error}",
                fix="Write the step for any number of rows and replicas: no fixed shape.",
            )
            return
        finding = _judged(one, comparison, program, coarsest)
        yield finding
        if finding.status is Status.FAILED:
            return  # What follows would only say it again.


def _narrowest(program: Program, steps: Sequence[Taken]) -> int:
    """Bytes of the narrowest floating type that the step computes in."""
    widths = [4]
    if program.look is not None:
        text = str(program.look.traced.jaxpr)
        widths += [2] if "bf16[" in text or "f16[" in text else []
        widths += [1] if "f8_" in text else []
    for each in steps:
        for array in each.before.variables.values():
            if jnp.issubdtype(array.dtype, jnp.floating):
                widths.append(array.dtype.itemsize)
    return min(widths)


def _judged(one: OneDevice, comparison: Comparison, program: Program, coarsest: int) -> Finding:
    label = comparison.taken.label
    tolerance = (
        f"{relative_tolerance(coarsest):g} of the largest change of each array, or ten times what "
        "one device differs from itself with the rows in reverse order"
    )
    differing = comparison.differing
    is_random = draws_its_own(program) or comparison.depends_on_order
    if not differing:
        rounding = [each.name for each in comparison.state if each.is_rounding and each.scale]
        is_close = all(x.apart <= x.strict for x in (*comparison.state, *comparison.aux))
        if is_random and not is_close:
            return _not_compared(comparison, program)
        return Finding(
            _CHECK,
            Status.PASSED,
            f"{label} gives what one device gives: {len(comparison.state)} arrays of state and "
            f"{len(comparison.aux)} results, within {tolerance}.",
            _table([*comparison.state, *comparison.aux]),
            why=None
            if not rounding
            else f"Rounding alone decides how {', '.join(rounding[:4])} change: not compared.",
        )
    if is_random:
        cause = cause_among_noise(comparison.state, len(comparison.taken.rows.counts or ()))
        differing = [x for x in comparison.state if x.scale]
    else:
        cause = cause_of(comparison.before, differing, comparison.taken, one, program)
    if cause is None and is_random:
        return _not_compared(comparison, program)
    worst = differing[0]
    table = _table(differing)
    only_aux = not is_random and not any(each.differs for each in comparison.state)
    what = (
        f"{label} does not give what one device gives: "
        f"{'the result' if only_aux else 'the first array that differs is'} `{worst.name}`, by "
        f"{worst.apart:.3g} where one device changes it by {worst.scale:.3g}."
    )
    if only_aux:
        what = (
            f"{label} returns another number than one device: `{worst.name}` is "
            f"{_number(worst.replicas)} and {_number(worst.one)} on one device. The state is that "
            "of one device."
        )
    status = Status.WARNING if only_aux and cause is None else Status.FAILED
    cause = cause or Cause(
        "The pattern is none of those that are known. Tolerance: " + tolerance + ".",
        "Look at what the replica function computes from its own rows alone before it combines.",
    )
    return Finding(_CHECK, status, what, table, cause.why, cause.fix)


def _not_compared(comparison: Comparison, program: Program) -> Finding:
    draws = draws_its_own(program)
    why = (
        "Each replica draws random numbers of its own, so one device has other masks and noise, "
        "and other numbers are right."
        if draws
        else "One device gives other numbers when the rows come in another order, so the step "
        "depends on the place of a row: random numbers, or what is computed from row to row."
    )
    return Finding(
        _CHECK,
        Status.NOT_CHECKED,
        f"{comparison.taken.label} is not compared with one device.",
        why=why,
        fix="Verify the same step without them: `model.eval()`, a dropout rate of 0.",
    )


def _table(entries: Sequence[Entry]) -> Table | None:
    rows = [
        (
            each.name,
            f"{_size(each.replicas):.4g}",
            f"{each.scale:.4g}",
            f"{each.apart:.2g}",
            f"{each.tolerance:.2g}",
        )
        for each in entries[:_MOST_ROWS]
    ]
    if not rows:
        return None
    return Table(("array", "change on replicas", "on one device", "apart", "allowed"), rows)


def _size(x: Array) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def _number(x: Array) -> str:
    return f"{float(np.real(x.ravel()[0])):.6g}"


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
