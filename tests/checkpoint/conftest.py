"""Fixtures of the tests of checkpoints."""

from __future__ import annotations

import pytest


@pytest.fixture
def path(tmp_path):
    """Where a checkpoint may be: nothing is there yet."""
    return tmp_path / "checkpoint"


@pytest.fixture(scope="session")
def strategies():
    """A strategy for each number of replicas from 1 to 4."""
    import replicax as rx

    return {n: rx.MirroredStrategy([f"cpu:{i}" for i in range(n)]) for n in range(1, 5)}


class Part:
    """A plain object with the attributes that it is given."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


@pytest.fixture
def part():
    return Part
