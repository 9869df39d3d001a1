"""What the workers compare before they start: programs, settings, devices."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxlib import version as jaxlib_version

from replicax.errors import (
    DevicesStartedError,
    FailedPreconditionError,
    StartupError,
    Table,
    describe,
)

from . import _compat
from ._silence import identity

_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)

_PACKAGES = ("orbax-checkpoint", "optax", "flax", "keras")
"""Packages whose releases compute, or write, in their own ways."""


def hello(rank: int, world_size: int, addresses: list[str]) -> dict[str, Any]:
    """The first message of a worker."""
    return {
        "rank": rank,
        "world_size": world_size,
        "host": socket.gethostname(),
        "identity": identity(),
        "addresses": addresses,
    }


def facts(addresses: list[str]) -> dict[str, Any]:
    """What has to be equal on all workers."""
    versions = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "jax": jax.__version__,
        "jaxlib": jaxlib_version.__version__,
        "numpy": np.__version__,
        "replicax": getattr(sys.modules.get("replicax"), "__version__", None),
    }
    versions |= {name: _release(name) for name in _PACKAGES}
    settings = {name: str(getattr(jax.config, name, None)) for name in _SETTINGS}
    compared = {"REPLICAX_CHECK": os.environ.get("REPLICAX_CHECK"), "program": program()}
    return versions | settings | compared | {"host order": ", ".join(addresses)}


def program() -> str:
    """What this process runs: the module or the script, and a digest of its text."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None:
        return "typed in"
    name = Path(file).name if spec is None else f"-m {spec.name}"
    try:
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    except OSError:  # of an archive, or gone
        return name
    return f"{name} ({digest})"


def _release(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices() -> dict[str, Any]:
    """What jax has found; starts its devices."""
    local = jax.local_devices()
    return {
        "platform": local[0].platform,
        "devices": len(local),
        "of all": jax.device_count(),
        "process": jax.process_index(),
    }


def compare(found: list[dict[str, Any]]) -> None:
    """Looks whether all workers have the same.

    Raises:
        StartupError: They differ; the table has what differs.
    """
    names = [name for name in found[0] if len({str(each.get(name)) for each in found}) > 1]
    if names:
        raise _mismatch(
            "The workers do not match: they differ in " + ", ".join(names) + ".",
            names,
            found,
            fix="start the same program in the same environment on all workers.",
        )


def compare_devices(found: list[dict[str, Any]]) -> None:
    """Looks whether each worker sees the same group of devices, and the same number of its own.

    Raises:
        StartupError: They differ.
    """
    total = sum(each["devices"] for each in found)
    is_whole = all(each["of all"] == total for each in found)
    in_order = [each["process"] for each in found] == list(range(len(found)))
    kinds = {(each["platform"], each["devices"]) for each in found}
    if len(kinds) > 1 or not is_whole or not in_order:
        raise _mismatch(
            "The workers do not have equal devices.",
            ["platform", "devices", "of all", "process"],
            found,
            fix="give each worker the same number of devices of one kind.",
        )


def _mismatch(what: str, names: list[str], found: list[dict[str, Any]], fix: str) -> StartupError:
    rows = [[rank, *(each.get(name) for name in names)] for rank, each in enumerate(found)]
    return StartupError(
        describe(
            what,
            table=Table(["worker", *names], rows),
            why="one program has to run on all of them, and give one result.",
            fix=fix,
        )
    )


def table_of(workers: list[dict[str, Any]]) -> Table | None:
    """Where each worker is, as the master knows; None where it has not said."""
    if not workers:
        return None
    names = list(workers[0])
    rows = [["-" if each[name] is None else each[name] for name in names] for each in workers]
    return Table(names, rows)


def check_that_nothing_started() -> None:
    """Looks whether this process can still become a worker.

    Raises:
        FailedPreconditionError: It is one already.
        DevicesStartedError: Its devices were used.
    """
    if _compat.is_initialized():
        raise FailedPreconditionError(
            describe(
                "This process is a worker of a job already.",
                why="jax.distributed.initialize or Runtime.join was called before.",
                fix="join once a process.",
            )
        )
    if _compat.devices_started():
        raise DevicesStartedError(
            describe(
                "This process has used jax's devices before it joined the job.",
                why="jax has found the devices of this process alone, and cannot add others.",
                fix="create the strategy before any array, and before jax.devices().",
            )
        )
