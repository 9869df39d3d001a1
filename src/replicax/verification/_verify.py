"""`rx.verify`: whether a step on replicas does what it does on one device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from replicax.errors import InvalidArgumentError, ReplicaDivergenceError, ReplicaxError, Table
from replicax.strategies import OneDeviceStrategy, Strategy
from replicax.values import Variable, live_variables

from ._batches import Batches, Rows, require_strategy, taken
from ._calls import Call, Moment, Outcome
from ._facts import Facts
from ._parity import OneDevice, Taken, loss_of, parity
from ._program import Program, collectives, facts_of, program_of, random_streams
from ._replicas import check_replicas_equal
from ._report import Finding, Report, Status
from ._rows import check_rows, coverage
from ._state import NotComparable, names_of, put_back, take
from ._steady import steady

_STEPS = 5


def verify(
    strategy: Strategy,
    step: Any,
    state_or_variables: Any,
    dataset: Any,
    *,
    one_device: bool = True,
) -> Report:
    """Checks that a training step does on all replicas what it does on one device.

    The user's own step runs on the user's own data, and nothing is changed: variables, the state of
    optimizers, random streams and the place in the dataset are put back, and a functional state is
    not given away. What Python code does beside (printing, counting) is done.

    Checked is: every replica holds rows, no row is read twice or left out (`rows`); mirrored state
    is equal bit by bit before and after (`mirrored`); collectives carry all that is trained
    (`collectives`); state and results are those of one device on the same global batches
    (`parity`); random streams differ between the replicas (`random`); every device is busy
    (`busy`). A step that the library refuses is a finding, too (`runs`).

    Context: cross-replica, or outside of every scope. Collective: where the strategy spans
    workers; each checks its part, and all get the same verdict.

    Args:
        strategy: The strategy.
        step: The training step. `step(batch)` writes variables in place;
            `state, aux = step(state, batch)` is in functional style.
        state_or_variables: The functional state; or the variables, module or model that the step
            writes, or None.
        dataset: A distributed dataset or an iterator of one; or what `strategy.distribute_dataset`
            takes.
        one_device: Whether to run the step on one device, too.

    Returns:
        A `Report`: print it; in tests, `report.raise_if_failed()`.

    Raises:
        ArgumentTypeError: An argument is of another kind.
        FailedPreconditionError: The dataset can be read only once.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable(0.0, name="w")
        >>> @rx.function
        ... def step(batch):
        ...     def replica_step(x):
        ...         ctx = rx.get_replica_context()
        ...         w.assign_sub(ctx.all_reduce("sum", x.sum()))  # the sum over all rows
        ...     strategy.run(replica_step, args=(batch,))
        >>> dataset = rx.data.from_arrays(np.arange(8.0, dtype="float32")).batch(4)
        >>> report = rx.verify(strategy, step, [w], dataset)
        >>> report.ok, float(w)
        (True, 0.0)
    """
    require_strategy(strategy)
    call = Call(step, state_or_variables)
    batches = taken(strategy, dataset, _STEPS)
    mesh = strategy.replica_mesh
    rows = [Rows(batch, mesh) for batch in batches.first]
    replicas = strategy.num_replicas_in_sync
    findings = [*_devices(strategy), *check_rows(batches, rows, replicas)]
    facts = Facts(coverage=coverage(batches, rows))
    if batches.first:
        more, facts = _of_step(strategy, call, batches, rows, facts, one_device=one_device)
        findings += more
    return Report(call.name, strategy.name, replicas, tuple(findings), facts)


def _devices(strategy: Strategy) -> Iterator[Finding]:
    """Whether the strategy leaves devices out."""
    used = strategy.replica_mesh.devices
    there = jax.devices(used[0].platform)
    if len(used) > 1 or len(there) == 1 or isinstance(strategy, OneDeviceStrategy):
        return
    yield Finding(
        "devices",
        Status.WARNING,
        f"1 replica, {len(there)} devices: {strategy.name} uses one of them.",
        Table(("device", "is used"), [(str(d), "yes" if d in used else "") for d in there[:16]]),
        why="The strategy was given one device, or made one replica.",
        fix="Leave the list of devices out: `rx.MirroredStrategy()` takes all; or say "
        "`rx.OneDeviceStrategy()`.",
    )


def _of_step(
    strategy: Strategy,
    call: Call,
    batches: Batches,
    rows: Sequence[Rows],
    facts: Facts,
    *,
    one_device: bool,
) -> tuple[list[Finding], Facts]:
    replicas = strategy.num_replicas_in_sync
    program = program_of(call, batches.first[0])
    if program.refused is not None:
        return [_refused(call, program.refused)], facts
    findings: list[Finding] = []
    with put_back(strategy):
        start = Moment(take(live_variables()), call.first)
        findings += _mirrored(strategy, start, "before")
        try:
            steps = _run(call, start, batches.first)
            last = _last(call, steps, batches, strategy)
        except ReplicaxError as error:
            return [*findings, _refused(call, error)], facts
        findings.append(_ran(call, len(steps)))
        findings += steady(program, call, batches.first[0])
        findings += _mirrored(strategy, steps[-1][1].after, "after")
        findings += collectives(program, call, replicas)
        asked, compiled = facts_of(program, call, replicas)
        facts = dataclasses.replace(facts, collectives=asked, compiled=compiled)
        if one_device:
            first = _first(call, steps, batches, rows)
            one = OneDevice(strategy, call, _names(strategy, program, steps))
            if any(x.check == "trace" and x.status is Status.FAILED for x in findings):
                findings.append(_pointless())
            else:
                findings += parity(one, program, [first, *last])
                facts = _losses(one, steps, rows, facts)
        findings += random_streams(program, replicas)
    return findings, facts


def _run(call: Call, start: Moment, batches: Sequence[Any]) -> list[tuple[Moment, Outcome]]:
    """Steps one after the other: for each, the state before it and what it did."""
    found, moment = [], start
    for batch in batches:
        outcome = call.run(moment, batch)
        known = {**outcome.after.variables, **moment.variables}  # With those that it created.
        found.append((Moment(known, moment.tree), outcome))
        moment = outcome.after
    return found


def _last(
    call: Call, steps: Sequence[tuple[Moment, Outcome]], batches: Batches, strategy: Strategy
) -> list[Taken]:
    """The last batch of the epoch, where it is uneven; else a step from a later state."""
    if batches.last is not None:
        before = steps[-1][1].after
        outcome = call.run(before, batches.last)
        rows = Rows(batches.last, strategy.replica_mesh)
        return [Taken("The step of the uneven last batch", before, lambda: outcome, rows)]
    return []


def _names(
    strategy: Strategy, program: Program, steps: Sequence[tuple[Moment, Outcome]]
) -> dict[Variable, str]:
    """The variables that the step uses; all of the strategy where that is not known."""
    known = list(steps[-1][1].after.variables)
    used = known if program.look is None else program.look.traced.used
    return names_of([v for v in known if v.strategy is strategy and v in used])


def _first(
    call: Call,
    steps: Sequence[tuple[Moment, Outcome]],
    batches: Batches,
    rows: Sequence[Rows],
) -> Taken:
    """The first step, and how to take it with the second batch."""
    before, outcome = steps[0]
    other = None
    if len(rows) > 1:
        again = functools.partial(call.run, before, batches.first[1])
        other = Taken("The first step with other rows", before, again, rows[1])
    return Taken("The first step", before, lambda: outcome, rows[0], other)


def _pointless() -> Finding:
    return Finding(
        "parity",
        Status.NOT_CHECKED,
        "The step is not compared with one device.",
        why="Traced again for one device, it would be another step.",
        fix="Mend what the check of the trace names.",
    )


def _ran(call: Call, count: int) -> Finding:
    return Finding("runs", Status.PASSED, f"`{call.name}` ran {count} steps on all replicas.")


def _refused(call: Call, error: ReplicaxError) -> Finding:
    """An error of the library, which names the fault itself."""
    what, _, rest = str(error).partition("\nWhy: ")
    why, _, fix = rest.partition("\nWhat to do: ")
    kind = type(error).__name__
    return Finding(
        "runs",
        Status.FAILED,
        f"`{call.name}` is refused ({kind}): {what}",
        None,
        why or None,
        fix or None,
    )


def _mirrored(strategy: Strategy, moment: Moment, when: str) -> Iterator[Finding]:
    """Mirrored state is equal bit by bit."""
    compared = []
    try:
        check_replicas_equal(strategy)
        compared.append("variables")
    except InvalidArgumentError:
        pass  # There are none.
    except ReplicaDivergenceError as error:
        yield Finding("mirrored", Status.FAILED, f"{when.capitalize()} the steps: {error}")
        return
    if moment.tree is not None:
        try:
            check_replicas_equal(moment.tree)
            compared.append("state")
        except InvalidArgumentError:
            pass  # It lies on one device as yet.
        except ReplicaDivergenceError as error:
            yield Finding("mirrored", Status.FAILED, f"{when.capitalize()} the steps: {error}")
            return
    if compared:
        what = f"{' and '.join(compared).capitalize()} are equal bit by bit on all replicas"
        yield Finding("mirrored", Status.PASSED, f"{what} {when} the steps.")
    elif when == "after":
        yield Finding(
            "mirrored",
            Status.NOT_CHECKED,
            "There is no mirrored state to compare.",
            why="The strategy has no variables, and the state is on one device.",
        )


def _losses(
    one: OneDevice,
    steps: Sequence[tuple[Moment, Outcome]],
    rows: Sequence[Rows],
    facts: Facts,
) -> Facts:
    """The losses of both runs, for the picture."""
    own = [loss_of(outcome.aux) for _, outcome in steps]
    try:
        outcomes = one.steps(steps[0][0], rows)
    except NotComparable:
        return facts
    there = [loss_of(outcome.aux) for outcome in outcomes]
    return dataclasses.replace(
        facts,
        losses=tuple(x for x in own if x is not None),
        losses_of_one=tuple(x for x in there if x is not None),
        step_seconds=tuple(outcome.seconds for _, outcome in steps),
        step_seconds_of_one=tuple(outcome.seconds for outcome in outcomes),
    )
