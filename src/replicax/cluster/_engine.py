"""The engine's waits: how a worker gets out of a collective that cannot end.

On CPU the engine is Gloo. A wait in it ends when its sockets are shut down, or when it fails to
set itself up. A thread of its own asks the coordination service which sockets those are, because
a question to a service that is cut off may never return.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import threading
from typing import Any

import jax

from . import _compat

SCOUT_INTERVAL_S = 0.5

_LIMIT_FLAG = "--xla_cpu_collective_timeout_seconds"
_ENGINE = re.compile(r"\b(gloo|nccl)\b", re.IGNORECASE)
_TROUBLE = re.compile(
    r"\b(gloo|nccl|collective operation|coordination service|socket closed|"
    r"connection (closed|reset|refused))\b",
    re.IGNORECASE,
)
_LATE = re.compile(r"timed out|deadline_exceeded|timeout", re.IGNORECASE)


def limit_waits(seconds: float) -> None:
    """Gives the engine's waits an end, unless the user did. Before jax's devices start."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _LIMIT_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_LIMIT_FLAG}={max(1, round(seconds))}".strip()


def is_trouble(error: BaseException) -> bool:
    """Whether an exception says that a collective could not reach a peer.

    jax raises `JaxRuntimeError`, or `ValueError` where it dispatches synchronously.
    """
    if isinstance(error, jax.errors.JaxRuntimeError):
        return bool(_TROUBLE.search(str(error)))
    return isinstance(error, (RuntimeError, ValueError)) and bool(_ENGINE.search(str(error)))


def is_late(error: BaseException) -> bool:
    """Whether such an exception is about time."""
    return bool(_LATE.search(str(error)))


class Engine:
    """Knows the engine's sockets, and shuts them.

    Args:
        client: The client of the coordination service.
        own_socket: Number of a socket that is never to be touched.
    """

    def __init__(self, client: Any, own_socket: int) -> None:
        self._client = client
        self._own_socket = own_socket
        self._ports: set[int] = set()
        self._open_files = 0
        self._wake = threading.Event()
        self._release = False
        self._ended = False
        self._gone: set[int] = set()
        self._thread = threading.Thread(target=self._scout, name="replicax-scout", daemon=True)

    def start(self) -> None:
        """Starts to look for sockets."""
        self._thread.start()

    def stop(self) -> None:
        """Stops to look. A look that does not return is left alone."""
        self._ended = True
        self._wake.set()
        self._thread.join(timeout=2 * SCOUT_INTERVAL_S)

    def shut(self) -> None:
        """Ends the engine's waits as far as its sockets are known; the scout does the rest."""
        shut_sockets(self._ports, keep=self._own_socket)
        self._release = True
        self._wake.set()

    def give_up(self, process: int) -> None:
        """A worker has left: what waits for it to set up a group of devices must not go on."""
        self._gone.add(process)
        self._wake.set()

    def _scout(self) -> None:
        while not self._ended:
            self._wake.wait(SCOUT_INTERVAL_S)
            self._wake.clear()
            if self._release:  # Again and again: a program that compiles yet waits later.
                entries = self._look()
                shut_sockets(self._ports, keep=self._own_socket)
                self._spoil(missing_entries(entries))
            elif self._gone:
                self._spoil(missing_entries(self._look(), among=_device_ids(self._gone)))
            elif (now := _count_open_files()) != self._open_files:
                self._open_files = now
                self._look()

    def _look(self) -> set[str]:
        """Notes where the processes of all groups listen, and returns their keys."""
        with contextlib.suppress(Exception):  # The service may be gone.
            entries = _compat.gloo_entries(self._client)
            self._ports |= {port for port in entries.values() if port is not None}
            return set(entries)
        return set()

    def _spoil(self, keys: list[str]) -> None:
        """Ends the wait for processes that have not joined a group of devices, and never will."""
        for key in keys:
            _compat.spoil_entry(self._client, key)


def missing_entries(keys: set[str], among: set[int] | None = None) -> list[str]:
    """Keys of the processes that have not joined a group that others have joined.

    A key ends with the device ids of the group and the number of a member. How many processes a
    group has is not written there; no more than it has devices. `among` asks for groups with one
    of these devices only.
    """
    groups = {key.rpartition("/")[0] for key in keys}
    missing = []
    for group in sorted(groups):
        devices = [int(number) for number in group.rpartition("/")[2].split(",")]
        if among is None or among & set(devices):
            wanted = [f"{group}/{number}" for number in range(len(devices))]
            missing += [key for key in wanted if key not in keys]
    return missing


def _device_ids(processes: set[int]) -> set[int]:
    return {each.id for each in jax.devices() if each.process_index in processes}


def shut_sockets(ports: set[int], *, keep: int) -> int:
    """Shuts this process's TCP connections from or to one of the ports, and counts them."""
    shut = 0
    for descriptor in _open_files() if ports else ():
        if descriptor == keep:
            continue
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                if _ports_of(copy) & ports:
                    copy.shutdown(socket.SHUT_RDWR)
                    shut += 1
    return shut


def _ports_of(connection: socket.socket) -> set[int]:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return set()
    return {connection.getsockname()[1], connection.getpeername()[1]}


def _open_files() -> list[int]:
    """Numbers of the open files; empty where the system does not tell."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - numbers only
    except OSError:
        return []


def _count_open_files() -> int:
    return len(_open_files())
