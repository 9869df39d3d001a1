"""Launches with tiny programs that import no jax."""

from __future__ import annotations

import sys
import textwrap

import pytest

import replicax as rx
from replicax.cluster import LaunchOptions

HEAD = """
import json, os, signal, subprocess, sys, time
rank = int(os.environ["RANK"])

def meet():
    "Waits for all workers; gives their processes."
    names = [f"{sys.argv[0]}.{other}" for other in range(int(os.environ["WORLD_SIZE"]))]
    with open(names[rank] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(names[rank] + ".new", names[rank])
    while not all(map(os.path.exists, names)):
        time.sleep(0.01)
    return [int(open(name).read()) for name in names]
"""


@pytest.fixture
def options(tmp_path, monkeypatch):
    """`options(source, *arguments, **fields)`: launch a program of these lines."""

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # GPUs would have to be shared out

    def make(source, *arguments, **fields):
        program = tmp_path / "program.py"
        program.write_text(HEAD + textwrap.dedent(source), encoding="utf-8")
        command = [sys.executable, "-S", "-u", str(program), *map(str, arguments)]
        timeouts = fields.pop("timeouts", rx.Timeouts(start=20, shutdown=5))
        return LaunchOptions(command=command, timeouts=timeouts, **fields)

    return make
