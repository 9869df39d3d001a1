"""The programs of examples/ that use Keras."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras", reason="Keras is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.timeout(115)
def test_fit_gives_the_numbers_of_one_device(run_program):
    done = run_program(EXAMPLES / "digits_keras_fit.py", "--epochs", "2", is_quick=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"epoch 2: accuracy 0\.9", done.stdout)
    assert "3 replicas and one device differ by at most" in done.stdout


@pytest.mark.timeout(115)
def test_a_loop_learns(run_program):
    done = run_program(EXAMPLES / "digits_keras_loop.py", "--epochs", "3", is_quick=True)

    assert done.returncode == 0, done.stdout + done.stderr
    accuracies = [float(x) for x in re.findall(r"accuracy (\d\.\d+)", done.stdout)]
    assert len(accuracies) == 3
    assert accuracies[-1] > 0.9


@pytest.mark.timeout(115)
def test_fit_on_two_workers_gives_the_numbers_of_one_device(tmp_path):
    ours = ("JAX_", "XLA_", "REPLICAX_", "PYTEST_", "COV_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join([str(EXAMPLES.parent / "src"), str(EXAMPLES)])
    command = [sys.executable, "-m", "replicax", "run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "digits_two_workers.py"), "1"],
        env=clean
        | {
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": path,
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 replicas on 2 workers, and one" in done.stdout
