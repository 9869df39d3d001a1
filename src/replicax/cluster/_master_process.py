"""The master as a child process of worker 0, where something else starts the workers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

from replicax.errors import StartupError, describe

from ._coordination import child_environment
from ._handshake import check_secret
from ._timeouts import Timeouts


class MasterProcess:
    """Starts a `Master` in a process of its own. Context: any.

    It outlives a worker 0 that was killed for `timeouts.shutdown` seconds, so that the others hear
    of that and can raise.

    Args:
        world_size: Number of workers.
        secret: The secret of the job. It goes through a pipe; no other process can read it.
        host: Address to listen on.
        port: Port of the control channel; 0 takes a free one.
        coordinator_port: Port of JAX's coordination service; 0 takes a free one.
        timeouts: How long to wait for what.

    Attributes:
        address: `host:port` of the control channel.
        coordinator_address: `host:port` of JAX's coordination service.

    Raises:
        InvalidArgumentError: The secret is too short.
        StartupError: An address cannot be bound.

    Examples:
        >>> master = MasterProcess(  # doctest: +SKIP
        ...     world_size=2, secret=secrets.token_bytes(32), timeouts=Timeouts()
        ... )
        >>> master.stop()  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        world_size: int,
        secret: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        coordinator_port: int = 0,
        timeouts: Timeouts,
    ) -> None:
        options = {
            "world_size": world_size,
            "secret": check_secret(secret).hex(),
            "host": host,
            "port": port,
            "coordinator_port": coordinator_port,
            "timeouts": timeouts.to_json(),
        }
        self._patience = timeouts.shutdown + 5.0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "replicax.cluster._serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C in a terminal is for the workers first
        )
        answer = self._ask(json.dumps(options))
        self.address = answer["address"]
        self.coordinator_address = answer["coordinator_address"]

    def _ask(self, line: str) -> dict[str, str]:
        assert self._process.stdin is not None  # noqa: S101 - for mypy
        assert self._process.stdout is not None  # noqa: S101 - for mypy
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        answer: dict[str, str] = json.loads(said) if said else {"error": "it ended at once"}
        if "error" in answer:
            self.stop()
            raise StartupError(describe(f"The master of the job did not start: {answer['error']}."))
        return answer

    def stop(self) -> None:
        """Lets it end once all workers have left; waits for that. May be repeated."""
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError, OSError):
            self._process.communicate(timeout=self._patience)
        self._process.kill()
        self._process.wait()
