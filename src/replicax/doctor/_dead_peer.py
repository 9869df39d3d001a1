"""How long a dead peer takes to be noticed: two workers of `replicax run`, one of which dies."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._process import child_environment, run

LIMIT_S = 45.0
_DEVICES = re.compile(r"--xla_force_host_platform_device_count=\d+")
_OF_A_JOB = (
    "REPLICAX_",
    "JAX_NUM_CPU_DEVICES",
    "TF_CONFIG",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "PET_",
)


def dead_peer(environment: Mapping[str, str], seconds: float = LIMIT_S) -> dict[str, Any]:
    """Starts the two on CPU devices, and returns what the one that lives tells.

    Args:
        environment: Variables; those that belong to a job are left out.
        seconds: How long it may take.
    """
    clean = {n: value for n, value in environment.items() if not n.startswith(_OF_A_JOB)}
    clean["XLA_FLAGS"] = _DEVICES.sub("", clean.get("XLA_FLAGS", ""))
    clean = child_environment(clean, JAX_PLATFORMS="cpu", REPLICAX_LOG="warning")
    with tempfile.TemporaryDirectory(prefix="replicax-doctor-") as folder:
        path = Path(folder) / "survivor"
        command = [sys.executable, "-m", "replicax", "run", "--standalone", "--nproc-per-node=2"]
        ended = run([*command, "-m", "replicax.doctor._peer", str(path)], seconds, clean)
        if path.exists():
            return dict(json.loads(path.read_text()))
    return {"how": ended.how, "output": (ended.stdout + ended.stderr)[-2000:]}
