"""What each device did while steps ran, out of JAX's profiler."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax

from ._xplane import Event, events

STEP = "rx.verify step"
"""The annotation around each step."""

_DEVICE = re.compile(r"^/device:\w+:(\d+)")
_COMMUNICATION = re.compile(
    r"^(?:psum|pmax|pmin|pmean|ppermute|all[-_]|reduce[-_]scatter|collective|ragged-all|nccl)"
)
_MOST_SPANS = 4000
_MOST_BYTES = 2**26

Interval = tuple[float, float]


@dataclasses.dataclass
class Busy:
    """What one device did in the steps, as intervals in seconds since the first step began.

    Attributes:
        compute: While it computed.
        communication: While it was in collectives, with the wait for the others.
    """

    compute: list[Interval] = dataclasses.field(default_factory=list)
    communication: list[Interval] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Profile:
    """A profile of some steps.

    Attributes:
        devices: What each device of this process did, by the number that the profiler gives it.
        steps: When each step began and ended.
        problem: Why there is none, if there is none.
    """

    devices: dict[int, Busy]
    steps: tuple[Interval, ...]
    problem: str | None = None


class Profiler:
    """Records what devices do in a `with` block; `result` tells afterwards.

    Args:
        names: Names of the collectives in the compiled program.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = frozenset(names)
        self.result = Profile({}, (), "the steps were not profiled")

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record. A profile that the user has started already stays as it is."""
        with tempfile.TemporaryDirectory(prefix="replicax-verify-") as folder:
            try:
                _start(folder)
            except Exception as error:  # noqa: BLE001 - any profiler may refuse in its own way
                self.result = Profile({}, (), f"the profiler did not start: {error}")
                yield
                return
            try:
                yield
            finally:
                jax.profiler.stop_trace()
            self.result = self._read(Path(folder))

    def _read(self, folder: Path) -> Profile:
        files = sorted(folder.rglob("*.xplane.pb"))
        if not files:
            return Profile({}, (), "the profiler wrote nothing")
        if files[0].stat().st_size > _MOST_BYTES:
            return Profile({}, (), "the profile is too large to be read here")
        steps: list[Interval] = []
        found: dict[int, list[tuple[str, Interval]]] = defaultdict(list)
        for event in events(files[0].read_bytes()):
            interval = (event.start, event.start + event.seconds)
            if event.name == STEP:
                steps.append(interval)
                continue
            name, ordinal = _operation(event)
            if name is not None and ordinal is not None:
                found[ordinal].append((name, interval))
        steps.sort()
        return Profile(self._devices(found, steps), _since(steps, steps))

    def _devices(
        self, found: dict[int, list[tuple[str, Interval]]], steps: Sequence[Interval]
    ) -> dict[int, Busy]:
        devices: dict[int, Busy] = {}
        for ordinal, operations in found.items():
            inside = [(name, i) for name, i in operations if _is_within(i, steps)]
            met = joined(i for name, i in inside if self._is_communication(name))
            busy = joined(i for _, i in inside)
            if busy:
                own = list(_since(without(busy, met), steps))
                devices[ordinal] = Busy(own, list(_since(met, steps)))
        return devices

    def _is_communication(self, name: str) -> bool:
        return name in self.names or _COMMUNICATION.match(name) is not None


def _start(folder: str) -> None:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Only devices are looked at.
    jax.profiler.start_trace(folder, profiler_options=options)


def _operation(event: Event) -> tuple[str | None, int | None]:
    """The operation of a compiled program that an event is, and its device."""
    name = event.stats.get("hlo_op")
    ordinal = event.stats.get("device_ordinal")
    device = _DEVICE.match(event.plane)
    if ordinal is None and device is not None:
        ordinal = int(device[1])
    return name, ordinal


def _is_within(interval: Interval, steps: Sequence[Interval]) -> bool:
    return any(start <= interval[0] < end for start, end in steps)


def _since(intervals: Iterable[Interval], steps: Sequence[Interval]) -> tuple[Interval, ...]:
    first = steps[0][0] if steps else 0.0
    return tuple((a - first, b - first) for a, b in intervals)[:_MOST_SPANS]


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, in order.

    Examples:
        >>> joined([(3.0, 4.0), (0.0, 1.0), (0.5, 2.0)])
        [(0.0, 2.0), (3.0, 4.0)]
    """
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def without(intervals: Iterable[Interval], others: Sequence[Interval]) -> list[Interval]:
    """What of joined intervals is in none of the others, which are joined too.

    Examples:
        >>> without([(0.0, 10.0)], [(1.0, 2.0), (9.0, 12.0)])
        [(0.0, 1.0), (2.0, 9.0)]
    """
    found: list[Interval] = []
    for first, last in intervals:
        start = first
        for a, b in others:
            if b <= start or a >= last:
                continue
            if a > start:
                found.append((start, a))
            start = max(start, b)
        if start < last:
            found.append((start, last))
    return found


def total(intervals: Iterable[Interval]) -> float:
    """Seconds of intervals that do not overlap."""
    return sum(end - start for start, end in intervals)
