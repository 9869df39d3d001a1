"""A child process with a time limit: what may hang or abort is done there."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_LAST_WORDS = 3000
_REAP_S = 2.0


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        code: Its exit code, negative for a signal; None if its time was over.
        stdout: What it wrote.
        stderr: The last that it wrote to standard error.
    """

    code: int | None
    stdout: str
    stderr: str

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.code is None:
            return "did not end in time"
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-self.code).name}"
        return f"ended with exit code {self.code}"


def child_environment(environment: Mapping[str, str], **more: str) -> dict[str, str]:
    """Variables with which a child finds this very package, wherever it was imported from."""
    home = str(Path(__file__).parents[2])
    path = [home, environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, path)), **more}


def run(command: Sequence[str], seconds: float, environment: Mapping[str, str]) -> Ended:
    """Runs a command in a session of its own, which is killed when its time is over.

    Its output goes to files: a pipe that a grandchild holds open would be waited for.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(  # noqa: S603 - our own programs, and nvidia-smi
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=dict(environment),
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
        finally:
            code = child.returncode
            if code is None:  # Else its number may be another's by now.
                _kill(child)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ended(code, texts[0], texts[1][-_LAST_WORDS:])


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Ends the session. A process that hangs in the kernel is left behind."""
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_REAP_S)
