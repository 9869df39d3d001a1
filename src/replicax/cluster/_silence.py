"""When a silent process counts as frozen or cut off, and when it is only busy.

A beacon is sent by Python. While native code holds Python's lock for long, or too many programs
share the cores, a healthy process is silent. Where it runs on this host, the system tells: it is
stopped, or uses no processor time, or is busy. A process elsewhere can only be heard.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_STOPPED = "TtZX"
_RUNNING = "RD"  # on a processor or in a queue for one; waiting for a disk, or for memory


class Silence:
    """Measures how long a process has been silent.

    Args:
        identity: The other end's `identity()`, or None.
        patience: Seconds after which a silent process is gone, unless it is busy.
        limit: Seconds after which it is gone, busy or not.
        now: The time.
    """

    def __init__(self, identity: object, *, patience: float, limit: float, now: float) -> None:
        self._pid = _pid_here(identity)
        self._patience = patience
        self._limit = limit
        self._sample: tuple[float, float] | None = None
        self._heard = now

    def heard(self, now: float) -> None:
        """A sign of life has come."""
        self._heard = now
        self._sample = None

    def is_over(self, now: float) -> bool:
        """Whether the process has to be given up. To be asked often."""
        silent = now - self._heard
        if silent <= self._patience / 2:
            return False
        is_busy = self._pid is not None and self._is_busy(self._pid, now)
        return silent > (max(self._limit, self._patience) if is_busy else self._patience)

    def _is_busy(self, pid: int, now: float) -> bool:
        """Whether it has used processor time, or asked for some, within half the patience."""
        state, used = _look(pid)
        if state in _STOPPED:
            return False
        if self._sample is None or used > self._sample[1] or state in _RUNNING:
            self._sample = now, used
        return now - self._sample[0] < self._patience / 2


def identity() -> dict[str, Any]:
    """This process, in terms that another process of the same host understands."""
    return {"pid": os.getpid(), "host": _host()}


def _pid_here(identity: object) -> int | None:
    if not isinstance(identity, Mapping) or identity.get("host") != _host() or _host() is None:
        return None
    pid = identity.get("pid")
    return pid if type(pid) is int else None


@functools.cache
def _host() -> str | None:
    """Names this boot of this host, what process ids mean here, and the network; None if unknown.

    Two processes with different networks can be cut off from each other, on one host too.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net")]  # noqa: PTH115
    except OSError:
        return None
    return " ".join([boot, *spaces])


def _look(pid: int) -> tuple[str, float]:
    """The state of a process, `X` if it is gone, and the seconds of processor time it has used."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "X", 0.0
    fields = text.rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return fields[0], ticks / os.sysconf("SC_CLK_TCK")
