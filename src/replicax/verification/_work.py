"""`rx.check_replicas_work`: what each replica gets to do, by the plan of its input."""

from __future__ import annotations

import dataclasses

from replicax.cluster import gather
from replicax.errors import (
    ArgumentTypeError,
    FailedPreconditionError,
    Table,
    UnimplementedError,
    describe,
)
from replicax.input import DistributedDataset, InputPlan


@dataclasses.dataclass(frozen=True)
class ReplicaWork:
    """What one replica gets in an epoch.

    Attributes:
        replica: Its number.
        device: Its device.
        steps: Steps in which it has a row.
        rows: Rows in all.
    """

    replica: int
    device: str
    steps: int
    rows: int


@dataclasses.dataclass(frozen=True)
class Work:
    """What the replicas get in an epoch. Printing it gives a table.

    Attributes:
        steps: Steps of the epoch.
        replicas: One entry a replica, in order.
    """

    steps: int
    replicas: tuple[ReplicaWork, ...]

    def __str__(self) -> str:
        """One row a replica."""
        rows = [
            (each.replica, each.device, f"{each.steps} of {self.steps}", each.rows)
            for each in self.replicas
        ]
        return str(Table(("replica", "device", "steps", "rows"), rows))


def check_replicas_work(
    dataset: DistributedDataset, *, replicas: int | None = None, epoch: int = 0
) -> Work:
    """Shows the steps and rows of each replica, and fails if one has none.

    A job of which one device does all the work ends well, only late. This looks at the plan of the
    input; nothing is read or run.

    Context: outside of replica functions. Collective: yes, where the strategy spans workers.

    Args:
        dataset: What a strategy has distributed, from a source that numbers its rows.
        replicas: How many replicas there should be; None expects nothing.
        epoch: The epoch to look at.

    Returns:
        The work of each replica: print it.

    Raises:
        FailedPreconditionError: A replica has no row in the epoch, or there are more or fewer
            replicas than expected; the message shows what each has.
        UnimplementedError: The rows are not known before they are read.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> options = rx.InputOptions(global_batch_size=4)
        >>> print(rx.check_replicas_work(strategy.distribute_dataset(np.arange(10), options)))
        replica  device  steps   rows
              0  cpu:0   3 of 3     5
              1  cpu:1   3 of 3     5
    """
    if not isinstance(dataset, DistributedDataset):
        raise ArgumentTypeError(
            describe(
                f"`dataset={dataset!r:.100}` is no distributed dataset.",
                fix="pass what `strategy.distribute_dataset(...)` has returned.",
            )
        )
    own = _own_work(dataset.plan, epoch)
    mesh = dataset._mesh
    everyone = [own]
    if mesh.spans_processes:
        everyone = gather("check_replicas_work", own)
    steps = max(work["steps"][0] for work in everyone)
    counts = [
        pair for work in everyone for pair in zip(work["with rows"], work["rows"], strict=True)
    ]
    names = [f"{device.platform}:{device.id}" for device in mesh.devices]
    found = Work(
        steps,
        tuple(
            ReplicaWork(replica, name, *pair)
            for replica, (name, pair) in enumerate(zip(names, counts, strict=True))
        ),
    )
    _check(found, replicas)
    return found


def _own_work(plan: InputPlan | None, epoch: int) -> dict[str, list[int]]:
    """Steps, and for each replica of this process the steps with a row, and the rows."""
    count = plan.num_steps if plan is not None else None
    if plan is None or count is None or (count and plan.rows(0, epoch) is None):
        raise UnimplementedError(
            describe(
                "The rows of this dataset are not known before they are read.",
                why="its source does not say how many rows it has, or does not number them.",
                fix="distribute arrays or an `rx.data` dataset of known length.",
            )
        )
    lengths = [[len(ids) for ids in plan.rows(step, epoch) or ()] for step in range(count)]
    by_replica = list(zip(*lengths, strict=True)) or [()] * plan.num_replicas
    return {
        "steps": [count],
        "with rows": [sum(length > 0 for length in each) for each in by_replica],
        "rows": [sum(each) for each in by_replica],
    }


def _check(found: Work, expected: int | None) -> None:
    count = len(found.replicas)
    if expected is not None and expected != count:
        raise FailedPreconditionError(
            describe(
                f"There are {count} replica(s), not {expected}:\n{found}",
                why="the strategy found fewer devices, or was given others.",
                fix="look at `jax.devices()`, at CUDA_VISIBLE_DEVICES and JAX_PLATFORMS, and at "
                "the devices that the strategy is given.",
            )
        )
    idle = [each.replica for each in found.replicas if not each.rows]
    if idle:
        raise FailedPreconditionError(
            describe(
                f"Replica(s) {', '.join(map(str, idle))} have no row to work on:\n{found}",
                why="a global batch with fewer rows than replicas leaves the last ones without.",
                fix="choose a larger global batch, or fewer replicas.",
            )
        )
