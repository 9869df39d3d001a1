"""What the machine and its settings are: facts, without a judgement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxlib import version as jaxlib_version

from ._process import run

ROOT = Path("/")
_LIBRARIES = ("orbax-checkpoint", "optax", "flax", "keras", "grain")
_PLUGIN = re.compile(r"jax-(cuda|rocm)\d+-(plugin|pjrt)|libtpu|jax-metal|nvidia-nccl-cu\d+")
_DRIVER = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)")
_SMI_S = 8.0
_SMI_FIELDS = "index,name,memory.used,memory.total"

PLATFORMS = "JAX_PLATFORMS"
SETTINGS = (
    PLATFORMS,
    "CUDA_VISIBLE_DEVICES",
    "JAX_CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "JAX_ROCM_VISIBLE_DEVICES",
    "TPU_VISIBLE_CHIPS",
    "TPU_VISIBLE_DEVICES",
    "XLA_FLAGS",
    "REPLICAX_CPU_DEVICES",
    "JAX_NUM_CPU_DEVICES",
    "NPROC",
    "OMP_NUM_THREADS",
)


def versions() -> dict[str, Any]:
    """Releases of what computes."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "replicax": getattr(sys.modules.get("replicax"), "__version__", None),
        "jax": jax.__version__,
        "jaxlib": jaxlib_version.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    plugins = {}
    for each in importlib.metadata.distributions():
        name = (each.metadata["Name"] or "").lower().replace("_", "-")
        if _PLUGIN.fullmatch(name):
            plugins[name] = each.version
        elif name in _LIBRARIES:
            found[name] = each.version
    return {**found, "plugins": plugins}


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that choose or hide devices and threads."""
    return {name: environment[name] for name in SETTINGS if name in environment}


def hardware(root: Path = ROOT) -> dict[str, Any]:
    """Accelerators that the system knows, whether jax sees them or not."""
    nvidia = len(_listed(root / "proc/driver/nvidia/gpus")) or sum(
        name[6:].isdecimal() for name in _listed(root / "dev") if name.startswith("nvidia")
    )
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    amd = sum(_text(nodes / name / "gpu_id").strip() not in ("", "0") for name in _listed(nodes))
    tpu = sum(name[5:].isdecimal() for name in _listed(root / "dev") if name.startswith("accel"))
    driver = _DRIVER.search(_text(root / "proc/driver/nvidia/version"))
    return {"nvidia": nvidia, "amd": amd, "tpu": tpu, "driver": driver and driver.group(1)}


def gpu_memory(environment: Mapping[str, str]) -> dict[str, Any]:
    """What `nvidia-smi` tells of the memory of the GPUs; it hangs where the driver does."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"gpus": []}
    command = [program, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"]
    ended = run(command, _SMI_S, environment)
    if ended.code != 0:
        return {"gpus": [], "how": ended.how, "error": (ended.stdout + ended.stderr)[-500:]}
    rows = [[cell.strip() for cell in line.split(",")] for line in ended.stdout.splitlines()]
    return {"gpus": [row for row in rows if len(row) == len(_SMI_FIELDS.split(","))]}


def limits() -> dict[str, Any]:
    """How many files this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        name: None if limit == resource.RLIM_INFINITY else limit
        for name, limit in (("open_files", soft), ("most", hard))
    }


def memory(root: Path = ROOT) -> dict[str, Any]:
    """Memory in bytes: of the machine, what is free, and what the control group may use."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE))
    total, free = (int(found[name]) << 10 for name in ("MemTotal", "MemAvailable"))
    limit, used = (_number(_control(root, *names)) for names in _MEMORY)
    if limit is not None and limit < total:
        free = min(free, limit - (used or 0))
        total = limit
    return {"total": total, "free": free}


_MEMORY = (
    ("memory.max", "memory/memory.limit_in_bytes"),
    ("memory.current", "memory/memory.usage_in_bytes"),
)


def shared_memory(root: Path = ROOT) -> dict[str, Any]:
    """Bytes of /dev/shm."""
    found = os.statvfs(root / "dev/shm")
    return {"total": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}


def cpus(root: Path = ROOT) -> dict[str, Any]:
    """The CPUs of the machine, those that this process may run on, and its share of time."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    quota = _control(root, "cpu.max", "cpu/cpu.cfs_quota_us").split()
    period = quota[1:] or _control(root, "-", "cpu/cpu.cfs_period_us").split()
    share = None
    if quota and period and (most := _number(quota[0])) is not None and most > 0:
        share = most / int(period[0])
    return {"count": os.cpu_count(), "allowed": allowed, "quota": share}


def _control(root: Path, new: str, old: str) -> str:
    """A file of the control group: of the second generation, or else of the first."""
    groups = root / "sys/fs/cgroup"
    own = re.search(r"^0::/(.*)$", _text(root / "proc/self/cgroup"), re.MULTILINE)
    places = [groups / own.group(1) / new] if own else []
    return next(filter(None, map(_text, [*places, groups / new, groups / old])), "")


def _number(text: str) -> int | None:
    """A number; None for `max` and for nothing."""
    text = text.strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _listed(path: Path) -> list[str]:
    try:
        return sorted(one.name for one in path.iterdir())
    except OSError:
        return []
