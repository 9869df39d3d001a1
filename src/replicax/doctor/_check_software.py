"""Judgements of releases: jax, its plugins, drivers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ._findings import Finding

Facts = Mapping[str, Any]

_DRIVERS = {"12": 525, "13": 580}
"""The oldest driver of NVIDIA for each generation of CUDA."""


def check_versions(facts: Facts) -> Iterator[Finding]:
    """Python, jax and what computes with it; plugins that jax would not load."""
    versions = facts["versions"]
    told = [f"{name} {value}" for name, value in versions.items() if isinstance(value, str)]
    yield Finding(id="versions", what=", ".join(told) + ".")
    plugins = {name: value for name, value in versions["plugins"].items() if name[:4] == "jax-"}
    if not plugins:
        return
    told = [f"{name} {value}" for name, value in versions["plugins"].items()]
    release = versions["jaxlib"]
    wrong = [name for name, value in plugins.items() if _release(value) != _release(release)]
    yield Finding(
        id="plugins",
        status="warning" if wrong else "ok",
        what=", ".join(told) + ".",
        why=f"jax loads a plugin of its own release alone; {', '.join(wrong)} is not that of "
        f"jaxlib {release}.",
        fix="install jax and its plugin together: pip install -U 'jax[cuda12]' (or cuda13, rocm).",
    )


def check_driver(facts: Facts) -> Iterator[Finding]:
    """Whether the driver of NVIDIA is new enough for the plugin."""
    driver = facts["hardware"]["driver"]
    if driver is None:
        return
    found = [name for name in facts["versions"]["plugins"] if name.startswith("jax-cuda")]
    needed = max((_DRIVERS.get(name[8:10], 0) for name in found), default=0)
    is_old = int(driver.partition(".")[0]) < needed
    yield Finding(
        id="driver",
        status="failure" if is_old else "ok",
        what=f"The driver of NVIDIA is {driver}.",
        why=f"{', '.join(found)} needs {needed} or newer; an older one leaves jax on the CPU.",
        fix="update the driver of the host, or install the plugin of an older CUDA.",
    )


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.split("+", maxsplit=1)[0].split(".")[:3])
