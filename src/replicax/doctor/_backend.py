"""jax's devices, looked at by a child process: a driver that hangs must not hang its parent."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._process import child_environment, run

PAIRS_S = 8.0
"""How long pairs of devices are tried, one after the other."""


def backend(environment: Mapping[str, str], seconds: float, *, is_quick: bool) -> dict[str, Any]:
    """What jax finds here, how it failed to, or at which stage it did not go on.

    Args:
        environment: The variables of the child.
        seconds: How long it may take.
        is_quick: Whether collectives are left out.
    """
    gentle = child_environment(environment, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    with tempfile.TemporaryDirectory(prefix="replicax-doctor-") as folder:
        path = Path(folder) / "found"
        extent = "quick" if is_quick else "whole"
        command = [sys.executable, "-P", "-m", "replicax.doctor._child", str(path), extent]
        command.append(str(PAIRS_S))
        ended = run(command, seconds, gentle)
        told = json.loads(path.read_text()) if path.exists() else {"stage": "importing replicax"}
    if ended.code != 0:
        told |= {"how": ended.how, "stderr": ended.stderr, "limit": seconds}
    return dict(told)
