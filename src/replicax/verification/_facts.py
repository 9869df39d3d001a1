"""What the checks of `rx.verify` measure, beside what they judge."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class SentCollective:
    """One collective of the step.

    Attributes:
        number: Its place in the program, from 1.
        op: Name of the primitive, such as `psum`.
        arrays: Number of arrays.
        bytes: Bytes that one replica puts in.
        group: Number of replicas that meet.
        line: Line of user code.
        carries: Names of the state whose new value depends on it.
    """

    number: int
    op: str
    arrays: int
    bytes: int
    group: int
    line: str
    carries: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class CompiledCollective:
    """One collective of XLA's program.

    Attributes:
        op: What XLA calls it, such as `all-reduce`.
        name: Name of the instruction.
        arrays: Number of arrays.
        bytes: Size of its results on one device.
    """

    op: str
    name: str
    arrays: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class ReplicaTime:
    """What one replica did while some steps ran, in seconds a step.

    Attributes:
        replica: Its number.
        device: Its device.
        compute: Seconds of arithmetic; None where it is not known.
        communication: Seconds in collectives, with the wait for others; None where not known.
        input_wait: Seconds that the process of the replica waited for its batch.
    """

    replica: int
    device: str
    compute: float | None
    communication: float | None
    input_wait: float | None


@dataclasses.dataclass(frozen=True)
class Span:
    """A piece of one replica's time line.

    Attributes:
        replica: The replica.
        start: Seconds since the step began.
        seconds: How long it took.
        kind: `compute` or `communication`.
    """

    replica: int
    start: float
    seconds: float
    kind: str


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The rows of one step.

    Attributes:
        step: Its number.
        counts: Rows of each replica.
        first: The place of each replica's first row in the dataset; None where not known.
    """

    step: int
    counts: tuple[int, ...]
    first: tuple[int | None, ...] = ()


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the checks measured.

    Attributes:
        coverage: Rows of the first steps of an epoch.
        collectives: Those of the step, after packing.
        compiled: Those of XLA's program; None where it was not looked at.
        losses: The loss of each step on all replicas.
        losses_of_one: The same on one device, on the same global batches.
        step_seconds: Seconds of each measured step.
        step_seconds_of_one: The same on one device.
        times: What each replica did.
        spans: The time lines of the replicas in a step of median length.
    """

    coverage: tuple[Coverage, ...] = ()
    collectives: tuple[SentCollective, ...] = ()
    compiled: tuple[CompiledCollective, ...] | None = None
    losses: tuple[float, ...] = ()
    losses_of_one: tuple[float, ...] = ()
    step_seconds: tuple[float, ...] = ()
    step_seconds_of_one: tuple[float, ...] = ()
    times: tuple[ReplicaTime, ...] = ()
    spans: tuple[Span, ...] = ()
