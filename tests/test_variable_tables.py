"""The tables of docs/variables.md are what the code gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLES = ["reads", "writes-across", "writes-in-replicas", "indexed", "checkpoints"]


def tables(*arguments):
    # Two processes share compiled programs, and one may read what the other is writing.
    warnings = ["-W", "error", "-W", "ignore:Error reading persistent compilation cache entry"]
    command = [sys.executable, *warnings, ROOT / "tools" / "variable_tables.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TABLES)
def test_the_page_says_what_the_code_does(name, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", os.environ["REPLICAX_TESTS_COMPILED"])
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    done = tables("--check", name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_table_is_left_out():
    page = (ROOT / "docs" / "variables.md").read_text(encoding="utf-8")
    assert [line.split()[1] for line in page.splitlines() if line.endswith(": begin -->")] == [
        f"{name}:" for name in TABLES
    ]
