"""Leads the process group of the workers, and ends all in it when the launcher is gone.

The launcher holds the other end of this program's standard input. When the launcher dies, in
whatever way, the kernel closes it. Every worker is born into this program's group, and so is
what a worker starts; nobody has to be registered, so nobody can be forgotten.

It is run by its path: it imports neither replicax nor jax.

    python _guard.py GRACE_SECONDS
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

END = b"end\n"
"""The launcher's last word: the workers have ended, and what they left behind may go."""
LEFT_BEHIND_S = 2.0
ORPHANS_S = 1.0
"""Workers whose launcher was killed hear of it themselves: they may raise and leave first."""
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def main(grace: str) -> None:
    """Waits for the launcher's last word or its end, then ends the group."""
    for number in _FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    os.write(1, b"ready\n")
    if sys.stdin.buffer.readline() == END:
        end_group(LEFT_BEHIND_S)
    elif not _waited(is_alone, ORPHANS_S):
        end_group(float(grace))


def end_group(grace: float) -> None:
    """SIGTERM to all in the group, and SIGKILL to all after `grace` seconds, this one included."""
    if is_alone():
        return
    os.killpg(0, signal.SIGTERM)
    if not _waited(is_alone, grace):
        os.killpg(0, signal.SIGKILL)


def is_alone() -> bool:
    """Whether nobody else is in this process's group."""
    me = os.getpid()
    return all(pid == me for pid in members(os.getpgrp()))


def members(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    if not os.path.isdir("/proc/self"):  # noqa: PTH112 - few imports, to be there quickly
        found = subprocess.run(
            ["/bin/ps", "-A", "-o", "pid=,pgid=,stat="],
            capture_output=True,
            text=True,
            check=False,
        )
        rows = [line.split() for line in found.stdout.splitlines()]
        return [int(row[0]) for row in rows if int(row[1]) == group and "Z" not in row[2]]
    names = os.listdir("/proc")  # noqa: PTH208 - few imports
    return [int(name) for name in names if name.isdecimal() and _is_in(name, group)]


def _is_in(pid: str, group: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - few imports
            state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
    except OSError:  # it has ended meanwhile
        return False
    return int(its_group) == group and state != b"Z"


def _waited(is_true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
