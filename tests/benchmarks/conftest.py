"""The programs of `benchmarks/` import each other by their names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import replicax as rx

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session", autouse=True)
def programs():
    """Makes the programs importable."""
    sys.path.append(str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="session")
def strategy():
    return rx.MirroredStrategy(["cpu:0", "cpu:1"])
