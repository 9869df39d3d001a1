"""One trial of a step: some steps on the replicas, the same on one device, and what came of it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from replicax.errors import InvalidArgumentError, ReplicaDivergenceError, ReplicaxError
from replicax.strategies import Strategy
from replicax.values import Variable

from ._batches import Batches, Rows
from ._busy import busy, times_of
from ._calls import Call, Moment, Outcome
from ._facts import Facts
from ._one_device import OneDevice, Taken, loss_of
from ._parity import parity
from ._profile import Profiler
from ._program import Program, collectives, facts_of, program_of, random_streams
from ._replicas import check_replicas_equal
from ._report import Finding, Status
from ._state import names_of, put_back, take
from ._steady import steady

_STEPS = 6  # The first one compiles, the others are measured.


class Trial:
    """A trial of a step. Whatever it runs, all state is put back.

    Args:
        strategy: The strategy.
        call: The step.
        batches: Batches, at least one.
        rows: Their rows.

    Attributes:
        facts: What was measured.
    """

    def __init__(
        self, strategy: Strategy, call: Call, batches: Batches, rows: Sequence[Rows]
    ) -> None:
        self._strategy, self._call, self._batches = strategy, call, batches
        count = max(_STEPS, len(rows))
        self._first = list(itertools.islice(itertools.cycle(batches.first), count))
        self._rows = list(itertools.islice(itertools.cycle(rows), count))
        self._program = Program(None, None)
        self._steps: list[tuple[Moment, Outcome]] = []
        self._profiler = Profiler()
        self.facts = Facts()

    def findings(self, *, one_device: bool) -> list[Finding]:
        """Run it, and say what came of it."""
        strategy, call = self._strategy, self._call
        variables = call.variables()  # They exist from here on, so they are put back, too.
        self._program = program_of(call, self._first[0])
        if self._program.refused is not None:
            return [_refused(call, self._program.refused)]
        self._look_at_program()
        findings: list[Finding] = []
        with put_back(strategy):
            start = Moment(take(strategy), call.first)
            findings += _mirrored(strategy, start, "before")
            trace = list(steady(self._program, call, self._first[0]))
            try:
                self._run(start)
                last = self._last()
            except ReplicaxError as error:
                return [*findings, _refused(call, error)]
            findings += [self._ran(), *trace]
            findings += _mirrored(strategy, self._steps[-1][1].after, "after")
            findings += collectives(self._program, call, strategy.num_replicas_in_sync)
            if one_device:
                is_steady = not any(x.check == "trace" and x.is_failed for x in findings)
                findings += self._parity(last) if is_steady else [_pointless()]
            findings += random_streams(self._program, strategy.num_replicas_in_sync)
        del variables
        return [*findings, *self._busy()]

    def _look_at_program(self) -> None:
        asked, compiled = facts_of(self._program, self._call, self._strategy.num_replicas_in_sync)
        self.facts = dataclasses.replace(self.facts, collectives=asked, compiled=compiled)
        self._profiler = Profiler(each.name for each in compiled or ())

    # -- on the replicas ---------------------------------------------------------------------------

    def _run(self, start: Moment) -> None:
        """Steps one after the other: for each, the state before it and what it did."""
        if self._call.trains_itself:  # The first call builds more than a step.
            self._call.run(start, self._first[0])
        self._step(start, self._first[0])
        with self._profiler.recording():
            for batch in self._first[1:]:
                self._step(self._steps[-1][1].after, batch)
        losses = [loss_of(outcome.aux) for _, outcome in self._steps]
        self.facts = dataclasses.replace(
            self.facts,
            losses=tuple(x for x in losses if x is not None),
            step_seconds=tuple(outcome.seconds for _, outcome in self._steps),
        )

    def _step(self, before: Moment, batch: Any) -> None:
        outcome = self._call.run(before, batch)
        known = {**outcome.after.variables, **before.variables}  # With those that it created.
        self._steps.append((Moment(known, before.tree), outcome))

    def _last(self) -> list[Taken]:
        """The last batch of the epoch, where it is uneven."""
        batch = self._batches.last
        if batch is None:
            return []
        before = self._steps[-1][1].after
        outcome = self._call.run(before, batch)
        rows = Rows(batch, self._strategy.replica_mesh)
        return [Taken("The step of the uneven last batch", before, lambda: outcome, rows)]

    def _ran(self) -> Finding:
        what = f"`{self._call.name}` ran {len(self._steps)} steps on all replicas."
        return Finding("runs", Status.PASSED, what)

    # -- on one device -----------------------------------------------------------------------------

    def _parity(self, last: Sequence[Taken]) -> Iterator[Finding]:
        one = OneDevice(self._strategy, self._call, self._names())
        yield from parity(one, self._program, [self._taken(), *last])
        try:
            outcomes = one.steps(self._steps[0][0], self._rows)
        except Exception:  # noqa: BLE001 - `parity` has said what it is
            return
        losses = [loss_of(outcome.aux) for outcome in outcomes]
        self.facts = dataclasses.replace(
            self.facts,
            losses_of_one=tuple(x for x in losses if x is not None),
            step_seconds_of_one=tuple(outcome.seconds for outcome in outcomes),
        )

    def _taken(self) -> Taken:
        """The first step, and how to take it with other rows."""
        before, outcome = self._steps[0]
        other = None
        rows = self._rows[1]
        batch = self._first[1]
        if len(self._batches.first) == 1:
            rows, batch = self._rows[0].repeated(self._strategy.replica_mesh)
        if batch is not None:
            again = functools.partial(self._call.run, before, batch)
            other = Taken("The first step with other rows", before, again, rows)
        return Taken("The first step", before, lambda: outcome, self._rows[0], other)

    def _names(self) -> dict[Variable, str]:
        """The variables that the step uses; all of the strategy where that is not known."""
        known = list(self._steps[-1][1].after.variables)
        look = self._program.look
        used = known if look is None else look.traced.used
        return names_of([v for v in known if v.strategy is self._strategy and v in used])

    # -- devices -----------------------------------------------------------------------------------

    def _busy(self) -> Iterator[Finding]:
        profile = self._profiler.result
        times, spans = times_of(profile, self._strategy, self._batches.waits[1:])
        self.facts = dataclasses.replace(self.facts, times=times, spans=spans)
        yield from busy(
            profile,
            self._strategy,
            times,
            self.facts.step_seconds,
            self.facts.step_seconds_of_one,
        )


def _refused(call: Call, error: ReplicaxError) -> Finding:
    """An error of the library, which names the fault itself."""
    what, _, rest = str(error).partition("\nWhy: ")
    why, _, fix = rest.partition("\nWhat to do: ")
    what = f"`{call.name}` is refused ({type(error).__name__}): {what}"
    return Finding("runs", Status.FAILED, what, None, why or None, fix or None)


def _pointless() -> Finding:
    return Finding(
        "parity",
        Status.NOT_CHECKED,
        "The step is not compared with one device.",
        why="Traced again for one device, it would be another step.",
        fix="Mend what the check of the trace names.",
    )


def _mirrored(strategy: Strategy, moment: Moment, when: str) -> Iterator[Finding]:
    """Mirrored state is equal bit by bit."""
    compared = []
    try:
        for what, held in (("variables", strategy), ("state", moment.tree)):
            if held is not None and _is_equal(held):
                compared.append(what)
    except ReplicaDivergenceError as error:
        yield Finding("mirrored", Status.FAILED, f"{when.capitalize()} the steps: {error}")
        return
    if compared:
        what = f"All replicas hold equal bits of the {' and the '.join(compared)}"
        yield Finding("mirrored", Status.PASSED, f"{what} {when} the steps.")
    elif when == "after":
        yield Finding(
            "mirrored",
            Status.NOT_CHECKED,
            "There is no mirrored state to compare.",
            why="The strategy has no variables, and the state is on one device.",
        )


def _is_equal(held: Any) -> bool:
    """Check the copies of mirrored arrays; False where there are none."""
    try:
        check_replicas_equal(held)
    except InvalidArgumentError:
        return False
    return True
