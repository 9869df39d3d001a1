"""What a new strategy says of itself in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax

from replicax import _log
from replicax.cluster import runtime
from replicax.devices import local_accelerators, spec_of
from replicax.devices._hints import hints

if TYPE_CHECKING:
    from replicax.strategies._base import Strategy

_MOST_NAMED = 8


def announce(strategy: Strategy) -> None:
    """Says which devices train together, and how: once in a job, where somebody listens."""
    if not _log.is_told(by_chief=strategy.is_chief):
        return
    devices = strategy.replica_mesh.devices
    workers, kind = strategy.worker_count, devices[0].platform.upper()
    facts = {
        "devices": _named(devices),
        "kind": None if kind == "CPU" else devices[0].device_kind,
        "unused": _unused(devices),
        "settings": " ".join(hints(None)) or None,
        "workers": _workers(strategy) if workers > 1 else None,
        "groups": f"1 (key {strategy.group_key}): all replicas reduce together",
        "collectives": _collectives(strategy),
        "versions": f"jax {jax.__version__}",
    }
    replicas = len(devices)
    title = f"{strategy.name}: {replicas} replica{'s' if replicas > 1 else ''} on {kind}"
    _log.tell(title, facts, by_chief=strategy.is_chief)


def carrier(platform: str, replicas: int, processes: int) -> str:
    """What carries the collectives of that many devices.

    Examples:
        >>> carrier("cpu", 4, 2)
        'Gloo, over TCP'
    """
    if replicas == 1:
        return "none: there is one replica"
    if platform == "gpu":
        return "NCCL (RCCL on AMD)"
    if platform == "tpu":
        return "the interconnect of the TPUs"
    return "the memory of the process" if processes == 1 else "Gloo, over TCP"


def _collectives(strategy: Strategy) -> str:
    platform = strategy.replica_mesh.devices[0].platform
    found = carrier(platform, strategy.num_replicas_in_sync, strategy.worker_count)
    asked = strategy.communication_options.implementation.name
    packed = strategy.communication_options.bytes_per_pack
    if asked != "AUTO":
        found += f" (XLA's choice; {asked} was asked for)"
    wire = strategy.communication_options.wire_dtype
    found += f"; float32 arrays travel as {wire}" if wire not in {None, "float32"} else ""
    return found + (f"; packs of {packed:,} bytes" if packed else "")


def _named(devices: Sequence[jax.Device]) -> str:
    names = [_short(device) for device in devices[:_MOST_NAMED]]
    more = len(devices) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _short(device: jax.Device) -> str:
    """`GPU:0`, or `worker 1 GPU:0` where there are several processes."""
    spec = spec_of(device)
    name = f"{spec.device_type}:{spec.device_index}"
    return f"worker {device.process_index} {name}" if jax.process_count() > 1 else name


def _unused(devices: Sequence[jax.Device]) -> str | None:
    """Accelerators of this process that do not train."""
    idle = [device for device in local_accelerators() if device not in devices]
    if not idle:
        return None
    return f"{_named(idle)}: not among the devices of this strategy"


def _workers(strategy: Strategy) -> str:
    joined = runtime()
    each = strategy.num_replicas_in_sync // strategy.worker_count
    by = "this is worker 0, the chief" if strategy.is_chief else f"this is {jax.process_index()}"
    started = "" if joined is None else "; they are watched, and fail together"
    return f"{strategy.worker_count}, with {each} replica{'s' * (each > 1)} each; {by}{started}"
