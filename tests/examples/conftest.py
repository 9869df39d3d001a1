"""Programs of this repository, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

WARNINGS = ["-W", "error"]
# Two processes share compiled programs, and one may read what the other is writing.
WARNINGS += ["-W", "ignore:Error reading persistent compilation cache entry"]
# `numpy()` of a Keras variable calls its own `__array__` as NumPy 2 does not want it any more.
WARNINGS += ["-W", "ignore:__array__ implementation:DeprecationWarning"]
ROOT = Path(__file__).resolve().parents[2]
PROGRAM_TIMEOUT_S = 170


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_program(file, *arguments)`: in a fresh interpreter, on the CPU, warnings as errors.

    Programs that run twice in a session are compiled once. With `is_quick` they are compiled as
    other tests are, not as a user's programs.
    """

    def run(
        program: Path, *arguments: str, is_quick: bool = False
    ) -> subprocess.CompletedProcess[str]:
        ours = ("JAX_", "XLA_", "REPLICAX_", "PYTEST_", "COV_", "FORCE_COLOR", "TTY_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "examples")])
        clean |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
        clean["JAX_COMPILATION_CACHE_DIR"] = os.environ["REPLICAX_TESTS_COMPILED"]
        if is_quick:
            clean["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")
        return subprocess.run(
            [sys.executable, *WARNINGS, program, *arguments],
            env=clean,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROGRAM_TIMEOUT_S,
        )

    return run
