"""The examination: facts are gathered, each part for itself, and judged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from replicax.cluster import ClusterResolver, detect_cluster, runtime
from replicax.cluster._addresses import host_of
from replicax.errors import InvalidArgumentError, describe

from . import _check_devices as of_devices
from . import _check_exchange as of_exchange
from . import _check_limits as of_limits
from . import _check_network as of_network
from . import _check_software as of_software
from . import _machine as machine
from . import _network as network
from ._backend import backend
from ._dead_peer import dead_peer
from ._findings import Finding, Report
from ._workers import Meeting

DEFAULT_PORT = 29400
_PORTS = 3
_LAST_PORT = 65535
BACKEND_S = 60.0
_QUICK_S = 30.0

Check = Callable[[Mapping[str, Any]], Iterable[Finding]]

CHECKS: tuple[tuple[Check, tuple[str, ...]], ...] = (
    (of_software.check_versions, ("versions",)),
    (of_software.check_driver, ("hardware", "versions")),
    (of_devices.check_backend, ("backend", "settings")),
    (of_devices.check_devices, ("backend", "settings", "hardware", "versions")),
    (of_devices.check_gpu_memory, ("gpu_memory",)),
    (of_exchange.check_exchange, ("backend",)),
    (of_limits.check_cpus, ("cpus", "settings")),
    (of_limits.check_memory, ("memory",)),
    (of_limits.check_shared_memory, ("shared_memory", "hardware")),
    (of_limits.check_files, ("limits",)),
    (of_network.check_name, ("own_name",)),
    (of_network.check_hosts, ("hosts",)),
    (of_network.check_ports, ("ports",)),
    (of_network.check_proxies, ("proxies",)),
    (of_exchange.check_dead_peer, ("dead_peer",)),
)
"""Each check, and the facts that it needs."""


def examine(
    *,
    quick: bool = False,
    alone: bool = False,
    devices: int | None = None,
    hosts: Sequence[str] = (),
    port: int | None = None,
) -> Report:
    """Looks at this machine, and at all workers of the job that this process is one of.

    Nothing hangs: jax's devices are started by a child process with a time limit, and a part that
    fails is a finding. Context: any. Collective, where there are several workers; these then join
    the job. In a process that is no worker, jax is not started.

    Args:
        quick: Leaves out what takes seconds: collectives, and the death of a process.
        alone: Leaves the other workers alone, even where the environment tells of a job.
        devices: How many devices jax should see in this process; another number is a failure.
        hosts: Addresses `host` or `host:port` of other hosts, which are looked up and connected to.
        port: The first of the three ports that host 0 of a job listens on.

    Returns:
        All findings. Every worker gets the same.

    Raises:
        InvalidArgumentError: An address or the port is none.

    Examples:
        >>> report = examine(quick=True)  # doctest: +SKIP
        >>> report.ok, [one.id for one in report.findings if not one.is_fine]  # doctest: +SKIP
        (True, [])
    """
    began = time.monotonic()
    first = DEFAULT_PORT if port is None else port
    if not 0 < first <= _LAST_PORT - _PORTS:
        raise InvalidArgumentError(describe(f"{port!r} is not the first of three ports."))
    findings: list[Finding] = []
    resolver = None if alone else _resolver(findings)
    asked = {
        "hosts": [host_of(each) for each in hosts],
        "ports": port is not None,
        "devices": devices,
        "local_workers": (resolver and resolver.local_world_size) or 1,
        "several_hosts": bool(hosts) or _are_several_hosts(resolver),
    }
    rank = 0 if resolver is None else resolver.rank
    facts = gathered(_parts(os.environ, list(hosts), first, is_quick=quick, rank=rank))
    facts |= {"asked": asked}
    several = resolver is not None and resolver.world_size > 1
    several = not alone and (several or _is_worker())
    meeting = Meeting(facts) if several else None
    if meeting is not None:
        meeting.hold(resolver, is_quick=quick)
    told = [facts] if meeting is None else meeting.facts
    findings += merged([list(judged(each)) for each in told])
    if meeting is not None:
        findings += meeting.findings()
    seconds = time.monotonic() - began
    return Report(findings=findings, facts=told, seconds=seconds, rank=rank)


def _are_several_hosts(resolver: ClusterResolver | None) -> bool:
    here = None if resolver is None else resolver.local_world_size
    return resolver is not None and here is not None and here < resolver.world_size


def _is_worker() -> bool:
    worker = runtime()
    return worker is not None and worker.world_size > 1


def _resolver(findings: list[Finding]) -> ClusterResolver | None:
    """What describes the job; a description that contradicts itself is a finding."""
    try:
        return detect_cluster()
    except Exception as error:  # noqa: BLE001 - told in the report
        why = "the variables that describe the job do not fit each other."
        what = f"The job cannot be told: {error}"
        findings.append(
            Finding(id="workers", status="failure", what=what, why=why, fix="see what it says.")
        )
        return None


def _parts(
    environment: Mapping[str, str], hosts: list[str], port: int, *, is_quick: bool, rank: int
) -> dict[str, Callable[[], Any]]:
    """What there is to know, by name. Host 0 alone looks at what all would find alike."""
    names = ["127.0.0.1", *map(host_of, hosts)]
    parts: dict[str, Callable[[], Any]] = {
        "versions": machine.versions,
        "settings": lambda: machine.settings(environment),
        "hardware": machine.hardware,
        "gpu_memory": lambda: machine.gpu_memory(environment),
        "limits": machine.limits,
        "memory": machine.memory,
        "shared_memory": machine.shared_memory,
        "cpus": machine.cpus,
        "own_name": network.own_name,
        "hosts": lambda: network.hosts(hosts, port),
        "proxies": lambda: network.proxies(environment, names),
        "backend": lambda: backend(
            environment, _QUICK_S if is_quick else BACKEND_S, is_quick=is_quick
        ),
    }
    is_in_job = "REPLICAX_CONTROL" in environment  # whose launcher holds the ports
    if rank == 0 and not is_in_job:
        parts["ports"] = lambda: network.ports(range(port, port + _PORTS))
    if rank == 0 and not is_quick:
        parts["dead_peer"] = lambda: dead_peer(environment)
    return parts


def gathered(parts: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """The facts; a part that cannot be told is `{"failed": why}`."""
    facts: dict[str, Any] = {}
    for name, part in parts.items():
        try:
            facts[name] = part()
        except Exception as error:  # noqa: BLE001 - told in the report
            facts[name] = {"failed": f"{type(error).__name__}: {error}"[:500]}
    return facts


def judged(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """What the facts of one worker mean. Parts that nobody asked for are left out."""
    failed = {n for n, part in facts.items() if isinstance(part, dict) and "failed" in part}
    for name in sorted(failed):
        yield Finding(
            id="examination",
            status="skipped",
            what=f"{name.replace('_', ' ')} could not be looked at: {facts[name]['failed']}",
        )
    for check, needed in CHECKS:
        if failed.intersection(needed) or not all(name in facts for name in needed):
            continue
        try:
            yield from check(facts)
        except Exception as error:  # noqa: BLE001 - told in the report
            what = f"{check.__name__} failed: {type(error).__name__}: {error}"
            yield Finding(
                id="examination",
                status="warning",
                what=what,
                why="this is a defect of the examination itself.",
                fix="please report it, with the output of `replicax doctor --json`.",
            )


def merged(found: Sequence[Sequence[Finding]]) -> list[Finding]:
    """The findings of all workers: equal ones once, and of what is fine, one of each kind."""
    if len(found) == 1:
        return list(found[0])
    groups: dict[Any, tuple[Finding, list[int]]] = {}
    for rank, findings in enumerate(found):
        for one in findings:
            key = (one.id, one.status) if one.is_fine else (one.id, one.status, one.what)
            groups.setdefault(key, (one, []))[1].append(rank)
    everybody = list(range(len(found)))
    return [
        one if ranks == everybody or one.is_fine else _of(one, tuple(ranks))
        for one, ranks in groups.values()
    ]


def _of(one: Finding, ranks: tuple[int, ...]) -> Finding:
    return Finding(
        id=one.id,
        status=one.status,
        what=one.what,
        why=one.why,
        fix=one.fix,
        table=one.table,
        workers=tuple(sorted(set(ranks))),
    )
