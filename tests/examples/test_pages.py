"""The programs in the pages of docs/ print what the pages show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
END = "-- end of a block --\n"


@pytest.mark.parametrize(
    "name",
    [
        "input.md",
        pytest.param("large_models.md", marks=pytest.mark.slow),
        pytest.param("nnx.md", marks=pytest.mark.slow),
        pytest.param("precision.md", marks=pytest.mark.slow),
        pytest.param("steps_per_execution.md", marks=pytest.mark.slow),
    ],
)
def test_the_code_of_a_page_is_one_program_that_prints_what_is_shown(name, run_program, tmp_path):
    if name == "nnx.md":
        pytest.importorskip("flax", reason="Flax is not installed: pip install 'replicax[flax]'")
    blocks = BLOCK.findall((DOCS / name).read_text(encoding="utf-8"))
    program = tmp_path / "program.py"
    ends = f"print({END!r}, end='')\n"
    program.write_text("".join(code + ends for code, _ in blocks), encoding="utf-8")

    done = run_program(program)

    assert done.returncode == 0, done.stderr
    assert len(blocks) > 1
    assert done.stdout.split(END)[:-1] == [shown for _, shown in blocks]
