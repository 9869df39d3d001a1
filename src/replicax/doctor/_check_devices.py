"""Judgements of devices: those that jax sees, those that are there, and what hides some."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from replicax.strategies._announcement import carrier

from ._findings import Finding

Facts = Mapping[str, Any]

_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_OF_CUDA = ("CUDA_VISIBLE_DEVICES", "JAX_CUDA_VISIBLE_DEVICES")
_OF_AMD = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "JAX_ROCM_VISIBLE_DEVICES")
_OF_TPU = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
_KINDS = {"nvidia": ("GPU", _OF_CUDA), "amd": ("GPU of AMD", _OF_AMD), "tpu": ("TPU", _OF_TPU)}
_PLATFORMS = {"nvidia": {"cuda", "gpu"}, "amd": {"rocm", "gpu"}, "tpu": {"tpu"}}
_FULL = 0.1


def check_backend(facts: Facts) -> Iterator[Finding]:
    """Whether jax starts."""
    found, platforms = facts["backend"], facts["settings"].get("JAX_PLATFORMS")
    if "error" in found:
        why = " ".join(found.get("notes", ())) or None
        fix = "run `python -c 'import jax; print(jax.devices())'` and see."
        if platforms:
            why = f"JAX_PLATFORMS is {platforms!r}: jax starts no other platforms, and this one "
            why += "is not there, or no plugin for it is installed."
            fix = "unset JAX_PLATFORMS, or set it to what is there: cpu, cuda, rocm, tpu."
        what = f"jax cannot start its devices: {found['error'].rstrip(': ')}"
        yield Finding(id="backend", status="failure", what=what, why=why, fix=fix)
    elif "platform" not in found:
        last = " ".join(found.get("stderr", "").splitlines()[-8:])
        is_late = found["how"] == "did not end in time"
        why = (
            f"it was given {found['limit']:g} s; a driver or a library hangs." if is_late else last
        )
        yield Finding(
            id="backend",
            status="failure",
            what=f"A process that starts jax {found['how']}, while {found['stage']}.",
            why=why or None,
            fix="look at `nvidia-smi` or its like, at the log of the kernel (`dmesg`), and at "
            "XLA_FLAGS: XLA ends the process on a flag that it does not know.",
        )
    else:
        notes = [line for line in found["notes"] if line]
        yield Finding(
            id="backend",
            status="warning" if notes else "ok",
            what=f"jax started {found['platform']} in {found['seconds']:.1f} s.",
            why="jax warned: " + " ".join(notes)[:600],
            fix="follow the warning; set JAX_PLATFORMS=cpu if the CPU is meant.",
        )


def check_devices(facts: Facts) -> Iterator[Finding]:
    """What jax sees, next to what the machine has and what settings ask for."""
    found = facts["backend"]
    if "platform" not in found:
        return
    count, platform = len(found["devices"]), found["platform"]
    kinds = sorted({one["kind"] for one in found["devices"]})
    named = f"{count} {platform.upper()} device{'' if count == 1 else 's'}"
    named += "" if kinds == ["cpu"] else f" ({', '.join(kinds)})"
    expected = facts["asked"]["devices"]
    is_other = expected is not None and expected != count
    one = " One replica: nothing is distributed." if count == 1 else ""
    yield Finding(
        id="devices",
        status="failure" if is_other else "ok",
        what=f"A strategy uses {named} of this process{f', not {expected}' * is_other}.{one}",
        why=f"--devices {expected} expects another number.",
        fix="see what hides the others, or why they are not used, in the other findings.",
    )
    by = carrier(platform, max(2, count), 1)
    over = carrier(platform, 2, 2)
    nccl = [f"{n} {v}" for n, v in facts["versions"]["plugins"].items() if "nccl" in n]
    more = f" ({', '.join(nccl)})" if nccl and platform == "gpu" else ""
    yield Finding(
        id="collectives", what=f"Inside of a process: {by}{more}; between processes: {over}."
    )
    yield from _accelerators(facts, platform, count)
    if platform == "cpu":
        yield from _logical(facts, count)


def _accelerators(facts: Facts, platform: str, count: int) -> Iterator[Finding]:
    for kind, (name, variables) in _KINDS.items():
        there = facts["hardware"][kind]
        reasons = list(_reasons(facts, kind, variables))
        seen = count if platform == ("tpu" if kind == "tpu" else "gpu") else 0
        if there and not seen and not reasons:
            plugins = {"nvidia": "jax[cuda12]", "amd": "jax[rocm]", "tpu": "jax[tpu]"}[kind]
            yield Finding(
                id="unused-devices",
                status="failure",
                what=f"The machine has {there} {name}, and jax uses {platform}.",
                why=_without_reason(facts, kind),
                fix=f"pip install -U '{plugins}' (for CUDA 13: jax[cuda13]), and look at `driver` "
                "and `plugins`.",
            )
        elif there > seen or (reasons and not there):
            shown = f"jax sees {seen} of {there} {name} of this machine."
            workers = facts["asked"]["local_workers"]
            is_share = workers > 1 and seen * workers == there
            if is_share:
                reasons = [f"That is the share of one of {workers} workers."]
            elif not there:
                shown = f"The system tells of no {name} here."
            yield Finding(
                id="hidden-devices",
                status="warning" if there and not is_share else "ok",
                what=f"{shown} {' '.join(reasons)}".strip(),
                why="a strategy trains on what jax sees, in silence.",
                fix="unset or correct the variable, unless this is meant.",
            )


def _without_reason(facts: Facts, kind: str) -> str:
    family = {"nvidia": "jax-cuda", "amd": "jax-rocm", "tpu": "libtpu"}[kind]
    if not any(name.startswith(family) for name in facts["versions"]["plugins"]):
        return f"no plugin of jax for them is installed ({family}...)."
    notes = " ".join(facts["backend"].get("notes", ()))
    return f"a plugin is installed, but did not start. {notes}".strip()


def _reasons(facts: Facts, kind: str, variables: tuple[str, ...]) -> Iterator[str]:
    """Settings that hide devices of a kind, each with what it does."""
    settings, there = facts["settings"], facts["hardware"][kind]
    platforms = settings.get("JAX_PLATFORMS", "")
    if there and platforms and not _PLATFORMS[kind] & set(platforms.lower().split(",")):
        yield f"JAX_PLATFORMS is {platforms!r}: jax starts no other platforms."
    for name in variables:
        if name in settings:
            yield f"{name} is {settings[name]!r}: {visible(settings[name], there)}."
    container = settings.get("NVIDIA_VISIBLE_DEVICES")
    if kind == "nvidia" and container in ("", "void", "none"):
        yield f"NVIDIA_VISIBLE_DEVICES is {container!r}: the container was started without GPUs."


def visible(text: str, there: int) -> str:
    """What a list of visible devices means.

    Examples:
        >>> visible("", 2), visible("-1", 2)
        ('it hides all', 'it hides all')
        >>> visible("0,9,1", 2)
        "what follows '9' is hidden too: there is no such device"
        >>> visible("1", 2)
        'it shows 1'
    """
    names = [name.strip() for name in text.split(",")]
    shown = 0
    for name in names:
        if name in ("", "-1", "NoDevFiles"):
            break
        if name.isdecimal() and there and int(name) >= there:
            return f"what follows {name!r} is hidden too: there is no such device"
        shown += 1
    return f"it shows {shown}" if shown else "it hides all"


def _logical(facts: Facts, count: int) -> Iterator[Finding]:
    """The number of logical CPU devices, where somebody asked for one."""
    settings = facts["settings"]
    asked = {name: settings[name] for name in _COUNTS if settings.get(name, "").strip()}
    if flags := _COUNT.findall(settings.get("XLA_FLAGS", "")):
        asked["XLA_FLAGS"] = flags[-1]
    if not asked:
        return
    wrong = [f"{name} asks for {value}" for name, value in asked.items() if value != str(count)]
    told = ", ".join(f"{name} asks for {value}" for name, value in asked.items())
    yield Finding(
        id="cpu-devices",
        status="failure" if wrong else "ok",
        what=f"{told}; jax has {count} CPU device{'' if count == 1 else 's'}.",
        why="two settings contradict each other, and one of them wins.",
        fix="keep one: REPLICAX_CPU_DEVICES, or rx.devices.logical(cpu=...).",
    )


_COUNTS = ("REPLICAX_CPU_DEVICES", "JAX_NUM_CPU_DEVICES")


def check_gpu_memory(facts: Facts) -> Iterator[Finding]:
    """Whether other processes hold the GPUs, as `nvidia-smi` tells."""
    found = facts["gpu_memory"]
    if "how" in found:
        yield Finding(
            id="gpu-memory",
            status="failure",
            what=f"nvidia-smi {found['how']}: {found['error'] or 'it said nothing'}",
            why="the driver, or a GPU, does not answer.",
            fix="look at the kernel's log (`dmesg`) for `Xid`; restart the driver or the host.",
        )
    for index, name, used, total in found["gpus"]:
        share = float(used) / float(total) if total.replace(".", "").isdecimal() else 0.0
        yield Finding(
            id="gpu-memory",
            status="warning" if share > _FULL else "ok",
            what=f"GPU {index} ({name}): {used} of {total} MiB in use.",
            why="another process holds memory there, and jax takes three quarters at its start.",
            fix="end the other process, choose other GPUs, or set XLA_PYTHON_CLIENT_MEM_FRACTION.",
        )
