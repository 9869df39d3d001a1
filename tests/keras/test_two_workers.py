"""One job of two workers with two devices each; see program.py for what they do."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="Keras is not installed")
pytest.importorskip("h5py", reason="h5py is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PATIENCE_S = 380
PROGRAM = Path(__file__).with_name("program.py")
SOURCE = Path(__file__).parents[2] / "src"
TOLERANCE = 1e-6


def load_program():
    specification = importlib.util.spec_from_file_location("keras_program", PROGRAM)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a job that has ended."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / "shared").mkdir()
    ours = ("JAX_", "XLA_", "REPLICAX_", "PYTEST_", "COV_")
    environment = {n: v for n, v in os.environ.items() if not n.startswith(ours)} | {
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": str(SOURCE),
        "PYTHONWARNINGS": "error,ignore:__array__ implementation doesn't accept a copy keyword",
        "REPLICAX_CPU_DEVICES": "2",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    command = [sys.executable, "-m", "replicax", "run", "--standalone", "--nproc-per-node", "2"]
    with (folder / "output").open("w") as output:
        job = subprocess.Popen(
            [*command, PROGRAM, folder],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            job.wait(PATIENCE_S)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
    return folder


def test_workers_and_one_device_have_the_same_numbers(folder):
    files = [folder / f"worker{rank}.json" for rank in (0, 1)]
    assert all(file.exists() for file in files), (folder / "output").read_text()[-5000:]
    first, second = (json.loads(file.read_text()) for file in files)
    failed = [text for found in (first, second) for text in found.values() if isinstance(text, str)]
    assert failed == []
    assert first == second
    assert set(first) == {"unseeded", "a_step", "fit_on_arrays", "own_methods_on_datasets"}

    program = load_program()
    one = program.rich_model()
    stop = keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=1)
    expected = one.fit(**program.options(), callbacks=[stop]).history
    history, weights, predicted, stopped = first["fit_on_arrays"]
    assert stopped == stop.stopped_epoch == 1
    check(history, expected)
    check(weights, program.arrays(one))
    check(predicted, one.predict(program.rows()[0], batch_size=6, verbose=0))

    # Worker 0 alone wrote, whole files, and what was written loads on one device.
    assert sorted(file.name for file in (folder / "shared").iterdir()) == ["best.keras", "log.csv"]
    lines = list(csv.DictReader((folder / "shared" / "log.csv").open()))
    check([float(line["loss"]) for line in lines], expected["loss"])
    best = keras.saving.load_model(folder / "shared" / "best.keras")
    check(best.predict(program.rows()[0], verbose=0), predicted)

    one = program.rich_model()
    x, y = program.rows()
    expected = one.fit(x, y, batch_size=11, shuffle=False, verbose=0).history
    history, weights, _ = first["own_methods_on_datasets"]
    check(history, expected)
    check(weights, program.arrays(one))


def check(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            check(found[name], value)
        return
    if isinstance(expected, list) and isinstance(expected[0], list):
        for one, other in zip(found, expected, strict=True):
            check(one, other)
        return
    assert np.max(np.abs(np.asarray(found) - np.asarray(expected)), initial=0) <= TOLERANCE
