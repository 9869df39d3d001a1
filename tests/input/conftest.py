"""Two strategies of two replicas, and a short way to run a replica function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import replicax as rx


@pytest.fixture(scope="session")
def strategy() -> rx.MirroredStrategy:
    return rx.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture(scope="session")
def other() -> rx.MirroredStrategy:
    return rx.MirroredStrategy(["cpu:2", "cpu:3"])


@pytest.fixture
def run(runner: Any, strategy: rx.MirroredStrategy) -> Callable[..., Any]:
    """`run(fn, *args)`: one `strategy.run`, once in each runner."""

    def one_step(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        step = runner(lambda *args: strategy.run(fn, args=args, kwargs=kwargs))
        return step(*args)

    return one_step
