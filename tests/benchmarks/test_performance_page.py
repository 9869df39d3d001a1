"""docs/performance.md is what `tools/performance.py` makes of the figures."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "performance.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("performance_page", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_figures_that_were_measured(tool):
    facts = json.loads(tool.FIGURES.read_text())
    assert tool.PAGE.read_text() == tool.page(facts, tool.limits())


def test_ratios_are_taken_within_rounds(tool):
    figures = {
        "jax": "1",
        "rounds": 3,
        "load": 9.0,
        "seconds": {
            "functional": [1.0, 2.0, 9.0],
            "by hand, slow": [2.0, 4.0, 9.0],
            "by hand, fast": [2.0, 2.0, 3.0],
        },
    }
    facts = {
        "cores": 2,
        "ours": ["functional"],
        "by_hand": ["by hand, slow", "by hand, fast"],
        "titles": {"mlp": "An MLP"},
        "found": {"One process": {"mlp": figures}},
    }

    text = tool.page(facts, [("memory", "64 KiB", "4 MiB")])

    assert "| An MLP | 1.00 (0.50 to 3.00) | fast | 2e+03 ms |" in text
    assert "up to 9 threads for 2 cores" in text
    assert "| mlp | 0.50 (0.50 to 1.00) | 0.50 (0.33 to 1.00) |" in text
