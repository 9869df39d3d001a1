"""The configurations of the table in docs/keras.md; tools/keras_table.py trains them longer."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import replicax as rx

pytest.importorskip("keras", reason="Keras is not installed")

pytestmark = pytest.mark.slow

TOOL = Path(__file__).parents[2] / "tools" / "keras_table.py"


def load_tool():
    specification = importlib.util.spec_from_file_location("keras_table", TOOL)
    module = importlib.util.module_from_spec(specification)
    sys.modules["keras_table"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


tool = load_tool()


@pytest.mark.parametrize("number", range(len(tool.CONFIGURATIONS)))
def test_a_training_equals_one_device(number):
    """In one global batch an epoch, so that each training is one program."""
    configuration = tool.CONFIGURATIONS[number]
    several = "2 steps" in configuration.label or "over 2 steps" in configuration.label
    options = {"size": tool.BATCH if several else configuration.rows, "predict": False}
    replicas = tool.REPLICAS[number % len(tool.REPLICAS)]
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])

    one = tool.trained(configuration, **options)
    other = tool.trained(configuration, strategy, **options)
    assert tool.difference(one, other) <= tool.TOLERANCE, configuration.label


@pytest.mark.timeout(115)
def test_two_workers_with_two_replicas_each_equal_one_device():
    """Two configurations, other ones on another Python; tools/keras_table.py runs all."""
    numbers = list(range(sys.version_info.minor % 18, len(tool.CONFIGURATIONS), 18))
    cells = tool.two_workers(numbers)

    assert sorted(cells) == numbers
    assert [n for n, cell in cells.items() if not cell <= tool.TOLERANCE] == []


def test_the_table_has_what_was_promised():
    rows = {configuration.rows for configuration in tool.CONFIGURATIONS}
    assert len(tool.CONFIGURATIONS) >= 30
    assert rows >= set(range(tool.BATCH, 2 * tool.BATCH))
    page = tool.PAGE.read_text(encoding="utf-8")
    labels = [f"| {configuration.label} |" for configuration in tool.CONFIGURATIONS]
    assert [label for label in labels if label not in page] == []
    assert "| 4 replicas | 2 x 2 |" in page
