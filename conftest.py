"""What pytest sets before jax starts, for tests/ and for the doctests of src/ alike."""

from __future__ import annotations

import os

import jax
import pytest

LOGICAL_CPU_DEVICES = 8


def pytest_configure(config: pytest.Config) -> None:
    """Choose the platform: real accelerators for `-m accelerator`, else logical CPU devices."""
    os.environ.pop("REPLICAX_CPU_DEVICES", None)  # the suite is written for the number below
    jax.config.update("jax_num_cpu_devices", LOGICAL_CPU_DEVICES)
    if config.option.markexpr != "accelerator":
        jax.config.update("jax_platforms", "cpu")
