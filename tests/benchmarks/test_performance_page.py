"""docs/performance.md is what `tools/performance.py` makes of the figures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "performance.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("performance_page", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def figures(**seconds):
    return {
        "cores": 2,
        "ours": ["functional"],
        "by_hand": ["by hand, an all-reduce a leaf", "by hand, fast"],
        "titles": {"mlp": "An MLP"},
        "found": {
            "One process": {
                "mlp": {"versions": ["jax 1"], "rounds": 3, "load": 9.0, "seconds": seconds}
            }
        },
    }


HANDS = {
    "by hand, an all-reduce a leaf": [2.0, 4.0, 9.0],
    "by hand, fast": [2.0, 2.0, 3.0],
}


def test_the_page_has_the_figures_that_were_measured(tool):
    assert tool.PAGE.read_text() == tool.page(tool.measured(), tool.limits(), tool.guarded())


def test_ratios_are_taken_within_rounds(tool):
    steps = figures(functional=[1.0, 2.0, 9.0], **HANDS)
    peers = figures(**{**HANDS, "PyTorch, one device": [1.0, 1.0, 1.0]})

    text = tool.page({"steps": steps, "peers": peers}, [("memory", "64 KiB", "4 MiB")])

    assert "| functional | 1.00 (0.50 to 3.00) |" in text
    assert "| *best by hand* | fast |\n| *its median* | 2000 ms |" in text
    assert "| functional | 0.50 (0.50 to 1.00) |\n| by hand, fast | 0.50 (0.33 to 1.00) |" in text
    assert "| PyTorch, one device | 0.25 (0.11 to 0.50) |" in text
    assert "up to 9 threads for 2 cores" in text


def test_targets_are_met_or_not_or_not_measured(tool):
    steps = figures(functional=[1.0, 2.0, 3.0], variables=[4.0, 4.0, 4.0], **HANDS)
    row = {"what": "many", "beside": "few", "target": "at most 0.2 x", "met": True}
    row |= {"ratio": 0.1, "lowest": 0.05, "highest": 0.2}
    report = {"tables": {"A step": [row, {**row, "target": ""}]}}

    text = tool.page({"steps": steps, "dispatches": report}, [], ["mlp"])

    assert "| mlp, one process: functional | the best by hand | at most 1.03 | 1.000 (0.5" in text
    assert "| mlp, one process: variables | the best by hand | at most 1.03 | 2.000 (1.3" in text
    measured = [line.rsplit(" | ", 1) for line in text.splitlines() if "mlp, one process" in line]
    assert [met for _, met in measured] == ["yes |", "**no** |"]
    assert (
        "| mlp, two processes: functional | the best by hand | at most 1.03 | not measured" in text
    )
    assert text.count("`benchmarks/dispatches.py`, a step: many | few | at most 0.2 | 0.100") == 1
    assert "| golden values | in a test | mlp | yes |" in text
