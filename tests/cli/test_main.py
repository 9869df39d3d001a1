"""The command itself, in this process and in one of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import replicax
from replicax.cli import main

ROOT = Path(__file__).parents[2]


def test_the_command_is_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

    assert declared == {"replicax": "replicax.cli:main"}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--help"], 0, "usage: replicax COMMAND"),
        (["--version"], 0, f"replicax {replicax.__version__}"),
        (["run", "--help"], 0, "usage: replicax run"),
        ([], 2, "usage: replicax COMMAND"),
        (["walk"], 2, "there is no command 'walk'"),
        (["run"], 2, "There is no program to run"),
        (["run", "--nnodes=1:2", "x.py"], 2, "--master-addr"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_command_says(capsys, words, code, says):
    assert main(words) == code
    assert says in "".join(capsys.readouterr())


def test_the_command_runs_a_module_and_gives_its_exit_code(tmp_path):
    (tmp_path / "train.py").write_text("import os, sys; sys.exit(int(os.environ['RANK']) * 5)")
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}", "PATH": "/usr/bin:/bin"}
    environment["REPLICAX_RUN_MODULE"] = "1"

    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "replicax", "run", "--nproc-per-node", "2", "train"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )

    assert (done.returncode, done.stdout) == (5, ""), done.stderr
    assert done.stderr.startswith("╭── first failure: worker 1 of 2"), done.stderr
