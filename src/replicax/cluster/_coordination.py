"""The process that hosts JAX's coordination service, as the master sees it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

from replicax.errors import StartupError, describe

from ._addresses import join_address

_PROGRAM = Path(__file__).with_name("_service.py")
_ATTEMPTS = 5
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


class CoordinationService:
    """Starts the process, and ends it.

    Args:
        host: Address to listen on.
        port: Port; 0 takes a free one.
        world_size: Number of workers.
        linger_seconds: How long it outlives a master that was killed.

    Raises:
        StartupError: The address cannot be bound.
    """

    def __init__(self, host: str, port: int, world_size: int, linger_seconds: float) -> None:
        for attempt in range(_ATTEMPTS):
            chosen = port or free_port(host)
            self.address = join_address(host, chosen)
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [
                    sys.executable,
                    _PROGRAM,
                    self.address,
                    str(world_size),
                    str(linger_seconds),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=child_environment() | _QUIET,
                start_new_session=True,  # Ctrl-C in a terminal is for the workers first
            )
            if self._is_ready():
                return
            if port or attempt + 1 == _ATTEMPTS:
                raise StartupError(
                    describe(
                        f"JAX's coordination service cannot listen on {self.address}.",
                        why="another program has the port, or the address is none of this host.",
                        fix="pass another port, or 0 for a free one.",
                    )
                )

    def _is_ready(self) -> bool:
        assert self._process.stdout is not None  # noqa: S101 - for mypy
        if self._process.stdout.readline() == b"ready\n":
            return True
        self._end()
        return False

    def is_alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Ends it. May be repeated."""
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            self._process.communicate(b"stop\n", timeout=2)
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def child_environment() -> dict[str, str]:
    """The environment for a child that finds the modules that this process finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def free_port(host: str) -> int:
    """A port that nobody listens on just now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
