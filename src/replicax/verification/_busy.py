"""The check of devices: each was busy, and what the others bring."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence

import jax

from replicax.errors import Table
from replicax.strategies import Strategy

from ._facts import ReplicaTime, Span
from ._profile import Busy, Interval, Profile, total
from ._report import Finding, Status

_CHECK = "busy"


def times_of(
    profile: Profile, strategy: Strategy, waits: Sequence[float]
) -> tuple[tuple[ReplicaTime, ...], tuple[Span, ...]]:
    """What each replica of this process did in a step, and its time line."""
    mesh = strategy.replica_mesh
    wait = statistics.fmean(waits) if waits else None
    steps = len(profile.steps)
    times: list[ReplicaTime] = []
    spans: list[Span] = []
    for replica, device in zip(mesh.local_replicas, mesh.local_devices, strict=True):
        busy = _of_device(profile, device)
        known = bool(profile.devices) and steps > 0
        compute = communication = None
        if known:
            compute = total(busy.compute) / steps if busy is not None else 0.0
            communication = total(busy.communication) / steps if busy is not None else 0.0
        name = f"{device.platform}:{device.id}"
        times.append(ReplicaTime(replica, name, compute, communication, wait))
        if busy is not None and steps:
            shown = _typical(profile.steps)
            spans += _spans(replica, "compute", busy.compute, shown)
            spans += _spans(replica, "communication", busy.communication, shown)
    return tuple(times), tuple(sorted(spans, key=lambda span: (span.replica, span.start)))


def _typical(steps: Sequence[Interval]) -> Interval:
    """The step that takes as long as the median."""
    in_order = sorted(steps, key=lambda step: step[1] - step[0])
    return in_order[(len(in_order) - 1) // 2]


def _spans(
    replica: int, kind: str, intervals: Sequence[Interval], step: Interval
) -> Iterator[Span]:
    """The pieces of one step, in seconds since it began."""
    first, last = step
    for start, end in intervals:
        if first <= start < last:
            yield Span(replica, start - first, end - start, kind)


def _of_device(profile: Profile, device: jax.Device) -> Busy | None:
    """What a device did: profilers number devices over all processes (CPU), or in their own."""
    if device.id in profile.devices:
        return profile.devices[device.id]
    return profile.devices.get(jax.local_devices(backend=device.platform).index(device))


def busy(
    profile: Profile,
    strategy: Strategy,
    times: Sequence[ReplicaTime],
    seconds: Sequence[float],
    of_one: Sequence[float],
) -> Iterator[Finding]:
    """Every device was busy; the speed against one replica, and the scaling efficiency.

    Args:
        profile: The profile.
        strategy: The strategy.
        times: What each replica did.
        seconds: Seconds of each step on all replicas, the first of which compiled.
        of_one: Seconds of each step on one device.
    """
    speed = _speed(strategy, seconds, of_one)
    if not profile.devices:
        reason = profile.problem or "the profiler of this platform does not tell of devices"
        yield Finding(
            _CHECK,
            Status.NOT_CHECKED,
            f"What each device did is not known. {speed}".rstrip(),
            why=f"There is no profile: {reason}.",
        )
        return
    table = Table(
        ("replica", "device", "compute", "communication", "waits for input"),
        [
            (x.replica, x.device, _ms(x.compute), _ms(x.communication), _ms(x.input_wait))
            for x in times
        ],
    )
    idle = [each for each in times if not each.compute]
    if idle:
        names = ", ".join(f"{each.replica} ({each.device})" for each in idle)
        yield Finding(
            _CHECK,
            Status.FAILED,
            f"The device of replica {names} computed nothing in {len(profile.steps)} steps.",
            table,
            why="The profile holds no operation on it, though the step ran.",
            fix="Run the step with `strategy.run`, on a batch of `strategy.distribute_dataset`.",
        )
        return
    yield Finding(
        _CHECK,
        Status.PASSED,
        f"Every device computed in each of {len(profile.steps)} steps. {speed}".rstrip(),
        table,
        why=_about(strategy),
    )


def _speed(strategy: Strategy, seconds: Sequence[float], of_one: Sequence[float]) -> str:
    if len(seconds) < 2 or len(of_one) < 2:  # noqa: PLR2004 - the first of them compiles
        return ""
    replicas = strategy.num_replicas_in_sync
    here, there = statistics.median(seconds[1:]), statistics.median(of_one[1:])
    if not here:
        return ""
    ratio = there / here
    return (
        f"A step takes {here * 1e3:.3g} ms, and {there * 1e3:.3g} ms on one device: {ratio:.2f} "
        f"times as fast, an efficiency of {100 * ratio / replicas:.0f} %."
    )


def _about(strategy: Strategy) -> str | None:
    """What the figures do not say."""
    if strategy.replica_mesh.devices[0].platform != "cpu":
        return "Communication counts the wait for the slowest replica."
    return (
        f"The replicas share {os.cpu_count()} CPU cores, so their times and the speed say how "
        "busy they were, not how the step scales on devices of its own. Communication counts the "
        "wait for the slowest replica."
    )


def _ms(seconds: float | None) -> str:
    return "not known" if seconds is None else f"{seconds * 1e3:.3g} ms"
