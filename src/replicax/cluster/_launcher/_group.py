"""The workers of this host: started together, in one process group with a guard."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from replicax.errors import InternalError, NotFoundError, PermissionDeniedError, describe

from ._guard import END

_GUARD = Path(__file__).with_name("_guard.py")
_GUARD_S = 10.0

OnExit = Callable[[int, int], None]
"""Called with the local rank and the exit status (negative: by that signal), in any thread."""


class WorkerGroup:
    """The workers of this host. They end with this process, whatever happens to it.

    Start it from a thread that lives as long as the workers.

    Args:
        grace_seconds: How long orphans have between SIGTERM and SIGKILL.
        on_exit: Told of each worker that has ended.
    """

    def __init__(self, grace_seconds: float, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._waiters: list[threading.Thread] = []
        self._guard = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", str(_GUARD), str(grace_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        # Ready, it ignores the signals of the group.
        if _pipe(self._guard.stdout).readline() != b"ready\n":
            self.close()
            raise InternalError(
                describe("The guard of the workers did not start.", why="see its output above.")
            )

    def start(
        self,
        local_rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        cwd: str | None = None,
    ) -> subprocess.Popen[bytes]:
        """Starts one worker.

        Raises:
            NotFoundError: There is no such program.
            PermissionDeniedError: It may not be run.
        """
        try:
            worker = subprocess.Popen(  # noqa: S603 - the user's own command
                list(command),
                env=dict(environment),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=self._guard.pid,
                bufsize=0,
            )
        except FileNotFoundError as error:
            what = f"There is no program {command[0]!r}, or no folder {cwd!r}."
            raise NotFoundError(describe(what, fix="check the command.")) from error
        except OSError as error:
            what = f"The program {command[0]!r} cannot be run: {error.strerror}."
            raise PermissionDeniedError(describe(what, fix="check the command.")) from error
        self._workers[local_rank] = worker
        waiter = threading.Thread(
            target=self._wait, args=(local_rank, worker), name=f"replicax-wait-{local_rank}"
        )
        waiter.daemon = True
        waiter.start()
        self._waiters.append(waiter)
        return worker

    def _wait(self, local_rank: int, worker: subprocess.Popen[bytes]) -> None:
        self._on_exit(local_rank, worker.wait())

    def pid(self, local_rank: int) -> int:
        """The process of a worker."""
        return self._workers[local_rank].pid

    def send(self, local_rank: int, number: int) -> None:
        """Sends a signal to a worker; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._workers[local_rank].send_signal(number)

    def kill(self) -> None:
        """Ends all that is in the group, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guard.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends what the workers left behind, and the guard. The workers have ended before."""
        pipe = _pipe(self._guard.stdin)
        with contextlib.suppress(OSError):
            pipe.write(END)
            pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()
        try:
            self._guard.wait(_GUARD_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._guard.wait()
        _pipe(self._guard.stdout).close()
        for waiter in self._waiters:
            waiter.join()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # noqa: S101 - for mypy: it was asked for
    return pipe
