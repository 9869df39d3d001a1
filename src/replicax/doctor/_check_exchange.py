"""Judgements of what was measured: collectives, and the death of a peer."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicax.errors import Table

from ._findings import Finding

Facts = Mapping[str, Any]

OUTLIER = 3.0
"""A pair that is slower than the usual one by this factor is named."""

_NOTICEABLE_S = 50e-6
_LATE_S = 1.0
_MOST_ROWS = 8


def check_exchange(facts: Facts) -> Iterator[Finding]:
    """Collectives over the devices of this process."""
    found = facts["backend"]
    if "platform" in found and "how" in found:
        yield Finding(
            id="device-group",
            status="failure",
            what=f"A process with the devices {found['how']}, in {found['stage']}.",
            why=" ".join(found["stderr"].splitlines()[-6:])
            or f"it was given {found['limit']:g} s: the devices do not reach each other.",
            fix="set NCCL_DEBUG=INFO and look for the transport; try NCCL_P2P_DISABLE=1. In "
            "virtual machines, PCI access control (ACS) breaks transfers between GPUs.",
        )
    if "group" not in found:
        return
    yield from group("device-group", f"all {len(found['devices'])} devices", found["group"])
    if found["pairs"]:
        # Logical devices of a CPU share one memory: what differs there is how busy it was.
        yield from pairs(
            "device-pairs", found["pairs"], found["wanted"], are_alike=found["platform"] == "cpu"
        )


def group(kind: str, who: str, found: Mapping[str, Any]) -> Iterator[Finding]:
    """One collective over all."""
    yield Finding(
        id=kind,
        status="ok" if found["is_right"] else "failure",
        what=f"An all-reduce over {who}: {speed(found)}."
        + ("" if found["is_right"] else " It gave wrong numbers."),
        why="what they compute together cannot be trusted.",
        fix="set NCCL_DEBUG=INFO, try NCCL_P2P_DISABLE=1, and test the memory of the devices.",
    )


def pairs(
    kind: str, found: Sequence[Mapping[str, Any]], wanted: int, *, are_alike: bool
) -> Iterator[Finding]:
    """The pairs, with those named that are wrong, or slower than the usual one."""
    wrong = [one for one in found if not one["is_right"]]
    slow = [] if are_alike else outliers(found)
    latencies, speeds = ([one[name] for one in found] for name in ("latency", "bandwidth"))
    what = f"{len(found)} of {wanted} pairs: {_range(latencies, 1e6, 0)} us, "
    what += f"{_range(speeds, 1e-9, 2)} GB/s"
    rows = [_row(one) for one in (wrong or slow)[:_MOST_ROWS]]
    table = Table(("pair", "us", "GB/s", "right"), rows)
    yield Finding(
        id=kind,
        status="failure" if wrong else "warning" if slow else "ok",
        what=what + ("; wrong numbers." if wrong else "; some are slower." if slow else "."),
        table=table if rows else None,
        why="a step is as slow as its slowest pair."
        if not wrong
        else "what they compute together cannot be trusted.",
        fix="look at `nvidia-smi topo -m`, at the cable, and at what else uses the link.",
    )


def _range(found: Sequence[float], scale: float, digits: int) -> str:
    """The least and the greatest, or the only one."""
    ends = dict.fromkeys(f"{scale * each(found):.{digits}f}" for each in (min, max))
    return " to ".join(ends)


def _row(one: Mapping[str, Any]) -> list[object]:
    pair = " and ".join(map(str, one["devices"]))
    return [pair, round(one["latency"] * 1e6), round(one["bandwidth"] / 1e9, 2), one["is_right"]]


def outliers(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The pairs that are slower than the usual pair by `OUTLIER`."""
    latency = statistics.median(one["latency"] for one in found)
    bandwidth = statistics.median(one["bandwidth"] for one in found)
    return [
        one
        for one in found
        if one["bandwidth"] < bandwidth / OUTLIER
        or one["latency"] > max(OUTLIER * latency, latency + _NOTICEABLE_S)
    ]


def check_dead_peer(facts: Facts) -> Iterator[Finding]:
    """Two processes of this host, and the death of one."""
    found = facts["dead_peer"]
    if "seconds" not in found:
        last = " ".join(found["output"].splitlines()[-12:])
        yield Finding(
            id="processes",
            status="failure",
            what=f"Two workers of this host did not compute together: the job {found['how']}.",
            why=last or "it said nothing.",
            fix="run `replicax run --nproc-per-node 2` with a program of your own, and see.",
        )
        return
    yield from group("processes", "two processes of this host, by Gloo", found)
    seconds, kind = found["seconds"], found["kind"]
    is_known = kind in ("signal", "lost")
    yield Finding(
        id="dead-peer",
        status="failure" if not is_known else "warning" if seconds > _LATE_S else "ok",
        what=f"A worker that was killed was noticed after {seconds:.3f} s ({kind}); one that "
        f"freezes is after {found['beacon']:g} s without a sign of life.",
        why="until then the others wait in a collective.",
        fix="if the host is not overloaded, report it: this takes some 0.03 s elsewhere.",
    )


def speed(found: Mapping[str, Any]) -> str:
    """What was measured, in words."""
    return f"{found['latency'] * 1e6:.0f} us, {found['bandwidth'] / 1e9:.2f} GB/s"
