"""The eager runner compiles each operation for each device: its comparisons are slow."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "eager" in item.name:
            item.add_marker(pytest.mark.slow)
