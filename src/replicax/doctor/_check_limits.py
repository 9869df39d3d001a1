"""Judgements of what the system allows: files, memory, CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ._findings import Finding

Facts = Mapping[str, Any]

FEW_FILES, MANY_FILES = 256, 1024
_GIB, _MIB = 1 << 30, 1 << 20
_LITTLE, _TOO_LITTLE = 2 * _GIB, _GIB // 4
_SHARED, _SHARED_OF_SEVERAL = 64 * _MIB, _GIB


def check_files(facts: Facts) -> Iterator[Finding]:
    """The limit of open files."""
    limit, most = facts["limits"]["open_files"], facts["limits"]["most"]
    few = limit is not None and limit < MANY_FILES
    too_few = limit is not None and limit < FEW_FILES
    fix = f"ulimit -n {4096 if most is None else min(4096, most)} before the start, or "
    if most is not None and most < MANY_FILES:
        fix = f"have the hard limit raised, which is {most}: "
    yield Finding(
        id="open-files",
        status="failure" if too_few else "warning" if few else "ok",
        what=f"This process may open {'any number of' if limit is None else limit} files.",
        why="each worker holds several connections to each other one, and readers of data hold "
        "files; what comes beyond the limit fails with `Too many open files`.",
        fix=fix + "LimitNOFILE (systemd), or --ulimit nofile (Docker).",
    )


def check_memory(facts: Facts) -> Iterator[Finding]:
    """Free memory, and shared memory."""
    total, free = facts["memory"]["total"], facts["memory"]["free"]
    little = free < _LITTLE
    yield Finding(
        id="memory",
        status="failure" if free < _TOO_LITTLE else "warning" if little else "ok",
        what=f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB of memory are free.",
        why="a process that takes more is killed (SIGKILL, exit code 137) without a message of "
        "its own. The limit of the control group counts, where it is lower than the machine's.",
        fix="give the container or the job more memory, or start fewer workers.",
    )


def check_shared_memory(facts: Facts) -> Iterator[Finding]:
    """Shared memory, which NCCL and readers of data use."""
    total, free = facts["shared_memory"]["total"], facts["shared_memory"]["free"]
    several = facts["hardware"]["nvidia"] > 1 or facts["hardware"]["amd"] > 1
    needed = _SHARED_OF_SEVERAL if several else _SHARED
    yield Finding(
        id="shared-memory",
        status="warning" if total < needed or free < _SHARED // 4 else "ok",
        what=f"{free / _MIB:,.0f} of {total / _MIB:,.0f} MiB of /dev/shm are free.",
        why="NCCL and processes that read data exchange through it; containers get 64 MiB unless "
        "they are told otherwise, and `No space left on device` or a bus error is what follows.",
        fix="--shm-size=8g (Docker), or an emptyDir with `medium: Memory` there (Kubernetes).",
    )


def check_cpus(facts: Facts) -> Iterator[Finding]:
    """The share of the CPUs, next to the number that libraries count."""
    found, settings = facts["cpus"], facts["settings"]
    counted = found["allowed"] or found["count"]
    quota = found["quota"]
    told = f"{counted} of {found['count']} CPUs"
    told += f", and the control group gives {quota:g} of their time" if quota else ""
    is_less = quota is not None and quota < counted and "NPROC" not in settings
    yield Finding(
        id="cpus",
        status="warning" if is_less else "ok",
        what=f"This process may use {told}.",
        why="libraries start a thread for each CPU that they count, and these then wait for a "
        "share of the time.",
        fix=f"set NPROC={max(1, round(quota or 1))} (XLA) and OMP_NUM_THREADS alike, or raise the "
        "limit.",
    )
