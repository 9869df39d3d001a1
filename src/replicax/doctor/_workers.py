"""An examination by all workers of a job: facts and clocks, before anything of theirs can fail."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from replicax._log import logger
from replicax.cluster import ClusterResolver, Runtime, join_cluster, runtime
from replicax.cluster._startup import facts as compared_facts
from replicax.collectives import TURNS
from replicax.errors import Table

from ._check_exchange import group, pairs
from ._exchange import of_group, of_pair, pairs_of
from ._findings import Finding

_LOGGER = logger("doctor")

_TICKS, _MOST_PAIRS = 7, 15
_APART_S = 1.0


class Meeting:
    """The examination as the workers share it.

    Args:
        own: What this worker knows of itself.

    Attributes:
        facts: What each worker knows of itself, by rank; of this one alone until they have met.
        clocks: Seconds that each worker's clock is ahead of worker 0's, and how sure that is.
        exchange: What was measured between the workers.
        error: Why they could not start together.
    """

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._own = {**own, "compared": compared_facts([])}
        self.facts: list[Mapping[str, Any]] = [self._own]
        self.clocks: list[tuple[float, float]] = []
        self.exchange: dict[str, Any] = {}
        self.error: Exception | None = None

    def hold(self, resolver: ClusterResolver | None, *, is_quick: bool) -> None:
        """Meets, compares, and has the devices of all workers exchange numbers. Collective."""
        try:
            worker = runtime()
            if worker is None:
                if resolver is not None and "REPLICAX_CONTROL" not in os.environ:
                    size = resolver.world_size
                    _LOGGER.warning("Waiting for all %d workers, of which this is one.", size)
                worker = join_cluster(resolver, first=self._first)
            else:
                self._first(worker)
            if worker is not None and not is_quick:
                self._exchange(worker)
        except Exception as error:  # noqa: BLE001 - told in the report
            self.error = error

    def _first(self, worker: Runtime) -> None:
        """The workers can send each other small messages, and nothing else yet."""
        self.facts = worker.gather("doctor/facts", self._own)
        ticks = []
        for _ in range(_TICKS):  # The answers leave the master at one moment.
            worker.gather("doctor/tick", None)
            ticks.append(time.time())
        self.clocks = offsets(worker.gather("doctor/clocks", ticks))

    def _exchange(self, worker: Runtime) -> None:
        devices = jax.devices()
        first: dict[int, int] = {}
        for place, device in enumerate(devices):
            first.setdefault(device.process_index, place)
        wanted = pairs_of(len(first), _MOST_PAIRS)
        TURNS.settle()
        with worker.guard():
            whole = of_group(devices)
            own = [of_pair(devices, (first[a], first[b])) for a, b in wanted]
        groups = worker.gather("doctor/group", whole)
        told = worker.gather("doctor/pairs", own)
        self.exchange = {
            "devices": len(devices),
            "platform": devices[0].platform,
            "group": _slowest(groups),
            "pairs": [
                {"devices": [a, b], **_slowest([told[a][i], told[b][i]])}
                for i, (a, b) in enumerate(wanted)
            ],
        }

    def findings(self) -> Iterator[Finding]:
        """What the workers have in common, and where they differ."""
        count = len(self.facts)
        if self.error is not None:
            kind = type(self.error).__name__
            yield Finding(
                id="workers",
                status="failure",
                what=f"The workers cannot start together ({kind}).\n{self.error}",
            )
        else:
            hosts = sorted({str(one["own_name"].get("name", "?")) for one in self.facts})
            what = f"{count} workers on {', '.join(hosts)} met, and started jax together."
            yield Finding(id="workers", what=what)
        if count > 1:
            yield from differences(self.facts)
        if self.clocks:
            yield from clocks(self.clocks)
        if self.exchange:
            found = self.exchange
            who = f"the {found['devices']} devices of {count} workers"
            yield from group("worker-group", who, found["group"])
            yield from pairs("worker-pairs", found["pairs"], len(found["pairs"]), are_alike=False)


def offsets(ticks: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """How far each clock is ahead of the first one, and how far single answers differ from that.

    Examples:
        >>> offsets([[1.0, 2.0, 3.0], [6.0, 7.0, 8.0]])
        [(0.0, 0.0), (5.0, 0.0)]
    """
    found = []
    for own in ticks:
        apart = [mine - first for mine, first in zip(own, ticks[0], strict=True)]
        found.append((statistics.median(apart), (max(apart) - min(apart)) / 2))
    return found


def clocks(found: Sequence[tuple[float, float]]) -> Iterator[Finding]:
    """Whether the clocks agree."""
    most = max(abs(offset) for offset, _ in found)
    is_apart = any(abs(offset) - unsure > _APART_S for offset, unsure in found)
    rows = [
        [rank, round(offset, 4), round(unsure, 4)] for rank, (offset, unsure) in enumerate(found)
    ]
    yield Finding(
        id="clocks",
        status="warning" if is_apart else "ok",
        what=f"The clocks of the workers are at most {most:.3f} s apart.",
        table=Table(("worker", "seconds ahead", "give or take"), rows) if is_apart else None,
        why="lines of logs and times of checkpoints cannot be compared, and certificates may count "
        "as expired. Replicax itself measures time on one host only.",
        fix="have the hosts keep their time by NTP: chronyc tracking, or timedatectl.",
    )


def differences(facts: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """A column for all that is not the same on every worker."""
    must = [_what_must_agree(one) for one in facts]
    may = [_what_may_differ(one) for one in facts]
    wrong, other = ([n for n in each[0] if _differs(each, n)] for each in (must, may))
    names = ["host", *wrong, *other]
    rows = [
        [
            rank,
            *({"host": one["own_name"].get("name"), **must[rank], **may[rank]}[n] for n in names),
        ]
        for rank, one in enumerate(facts)
    ]
    differing = ", ".join(wrong + other)
    yield Finding(
        id="workers-differ",
        status="failure" if wrong else "warning" if other else "ok",
        what=f"The workers differ in {differing}." if differing else "All workers are alike.",
        table=Table(("worker", *names), rows) if differing else None,
        why="one program has to run on all of them: a job refuses to start."
        if wrong
        else "the job starts, but workers may be of different speed.",
        fix="start the same program in the same environment on all workers.",
    )


def _what_must_agree(one: Mapping[str, Any]) -> dict[str, Any]:
    backend = one["backend"]
    return {
        **{name: _shown(value) for name, value in one["compared"].items()},
        "platform": backend.get("platform", "-"),
        "devices": len(backend.get("devices", ())),
    }


def _what_may_differ(one: Mapping[str, Any]) -> dict[str, Any]:
    kinds = sorted({device["kind"] for device in one["backend"].get("devices", ())})
    plugins = one["versions"].get("plugins", {})
    return {
        "kind": ", ".join(kinds) or "-",
        "plugins": ", ".join(f"{name} {value}" for name, value in plugins.items()) or "-",
        "driver": _shown(one["hardware"].get("driver")),
        "system": _shown(one["versions"].get("system")),
        "CPUs": _shown(one["cpus"].get("count")),
        "open files": _shown(one["limits"].get("open_files")),
        **{f"{name}": _shown(one["settings"].get(name)) for name in ("JAX_PLATFORMS", "XLA_FLAGS")},
    }


def _differs(each: Sequence[Mapping[str, Any]], name: str) -> bool:
    return len({str(one.get(name)) for one in each}) > 1


def _shown(value: object) -> object:
    return "-" if value is None else value


def _slowest(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "latency": max(one["latency"] for one in found),
        "bandwidth": min(one["bandwidth"] for one in found),
        "is_right": all(one["is_right"] for one in found),
    }
