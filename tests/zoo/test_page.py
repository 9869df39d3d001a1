"""The table of docs/zoo.md is what the programs say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "zoo_table.py"


def test_the_page_lists_all_broken_programs():
    done = subprocess.run(
        [sys.executable, TOOL, "--check"], capture_output=True, text=True, check=False, timeout=55
    )
    assert done.returncode == 0, done.stdout + done.stderr
