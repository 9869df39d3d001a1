"""The parts of jax that the cluster floor needs and that have no public name.

Each has a test that fails when jax moves it. Nothing is imported before it is needed: the
process that hosts the coordination service imports `jaxlib` alone.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Any

HEARTBEAT_S = 100
"""Of the coordination service. Our own beacons notice much earlier; see `Timeouts.beacon`."""

GLOO_KEYS = "cpu:gloo/"
"""Under `<device ids>/<number>`, each process of a CPU collective keeps where it listens."""

_SIZE_BYTES = 8
_MAX_NAME_BYTES = 1024
_SPOILT = b"\xff" * 256  # the length of a name that no string can have
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def start_coordination_service(address: str, world_size: int, shutdown_seconds: float) -> Any:
    """Hosts the service in this process. The result has to be kept alive.

    It is recoverable: the end of one worker is no fatal error for the clients of the others.

    Raises:
        RuntimeError: The address cannot be bound.
    """
    from jaxlib import _jax  # noqa: PLC0415 - see above

    return _jax.get_distributed_runtime_service(
        address,
        world_size,
        heartbeat_timeout=HEARTBEAT_S,
        shutdown_timeout=max(1, round(shutdown_seconds)),
        recoverable=True,
    )


def connect_client(address: str, rank: int, world_size: int, start_seconds: float) -> Any:
    """Makes this process a worker for jax, as `jax.distributed.initialize` does.

    Unlike there, the service is not hosted here, and no handler of SIGTERM is installed.
    """
    from jax._src import distributed  # noqa: PLC0415 - see above
    from jaxlib import _jax  # noqa: PLC0415 - see above

    client = _jax.get_distributed_runtime_client(
        address,
        rank,
        init_timeout=max(1, round(start_seconds)),
        heartbeat_timeout=HEARTBEAT_S,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    state = distributed.global_state
    state.client, state.process_id, state.num_processes = client, rank, world_size
    state.coordinator_address = address
    return client


def is_initialized() -> bool:
    """Whether `jax.distributed.initialize`, or this module, made the process a worker."""
    from jax._src import distributed  # noqa: PLC0415 - see above

    return distributed.global_state.client is not None


def coordination_client() -> Any:
    """The client of jax's coordination service, or None where this process is no worker."""
    from jax._src import distributed  # noqa: PLC0415 - see above

    return distributed.global_state.client


def disconnect_client(client: Any, *, is_cut: bool = False) -> None:
    """Takes the worker out of the service. jax keeps its devices, and is none's worker.

    A client whose service is gone (`is_cut`) could not take leave; it is kept as it is.
    """
    from jax._src import distributed  # noqa: PLC0415 - see above

    state = distributed.global_state
    if state.client is client:
        state.client = None
    if is_cut:
        _LEFT_BEHIND.append(client)
        return
    with contextlib.suppress(RuntimeError):  # The service may be gone.
        client.shutdown()


_LEFT_BEHIND: list[Any] = []


def devices_started() -> bool:
    """Whether a backend of jax is there already."""
    from jax._src import xla_bridge  # noqa: PLC0415 - see above

    return bool(xla_bridge.backends_are_initialized())


def gloo_entries(client: Any) -> dict[str, int | None]:
    """The port that each process listens on, by key. None where the value cannot be read."""
    entries = client.key_value_dir_get_bytes(GLOO_KEYS)
    return {key: listener_port(value) for key, value in entries}


def listener_port(value: bytes) -> int | None:
    """The port in Gloo's description of a process; None where it reads otherwise.

    It is the host's name and a `sockaddr`, each behind its length in eight bytes.
    """
    name_bytes = int.from_bytes(value[:_SIZE_BYTES], sys.byteorder)
    address = value[2 * _SIZE_BYTES + name_bytes :]
    family = int.from_bytes(address[:2], sys.byteorder)
    if name_bytes > _MAX_NAME_BYTES or family not in _FAMILIES:
        return None
    return int.from_bytes(address[2:4], "big") or None


def spoil_entry(client: Any, key: str) -> None:
    """Writes an impossible length where a process that will not come would write its listener.

    Who waits for it fails at once instead of after 30 s. An entry that is there stays. The value
    has to be as long as a length: Gloo reads beyond the end of a shorter one.
    """
    with contextlib.suppress(Exception):  # ALREADY_EXISTS, or the service is gone.
        client.key_value_set_bytes(key, _SPOILT)
