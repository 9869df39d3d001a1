"""`rx.verify`: whether a step on replicas does what it does on one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from replicax.cluster import gather
from replicax.errors import Table
from replicax.strategies import OneDeviceStrategy, Strategy

from ._batches import Rows, require_strategy, taken
from ._calls import Call
from ._facts import Facts
from ._report import Finding, Report, Status
from ._rows import check_rows, coverage
from ._trial import Trial

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
            `state, aux = step(state, batch)` is in functional style. A compiled Keras model stands
            for its `fit`.
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
    call = Call(strategy, step, state_or_variables)
    batches = taken(strategy, dataset, _STEPS)
    mesh = strategy.replica_mesh
    rows = [Rows(batch, mesh) for batch in batches.first]
    replicas = strategy.num_replicas_in_sync
    findings = [*_devices(strategy), *check_rows(batches, rows, replicas)]
    facts = Facts(coverage=coverage(batches, rows))
    if batches.first:
        trial = Trial(strategy, call, batches, rows)
        findings += trial.findings(one_device=one_device)
        facts = dataclasses.replace(trial.facts, coverage=facts.coverage)
    if mesh.spans_processes:
        findings = _agreed(findings)
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


def _agreed(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, and those that failed on other workers. Collective."""
    told = gather("rx.verify", [(x.check, x.status.value, x.what) for x in findings])
    own = {(x.check, x.what) for x in findings}
    found = list(findings)
    for worker, theirs in enumerate(told):
        found += [
            Finding(check, Status.FAILED, f"On worker {worker}: {what}")
            for check, status, what in theirs
            if status == Status.FAILED.value and (check, what) not in own
        ]
    return found
