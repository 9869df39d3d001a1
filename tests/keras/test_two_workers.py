"""One job of two workers with two devices each; see program.py for what they do."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import replicax as rx

keras = pytest.importorskip("keras", reason="Keras is not installed")
pytest.importorskip("h5py", reason="h5py is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(115),
]

PROGRAM = Path(__file__).with_name("program.py")
SOURCE = Path(__file__).parents[2] / "src"
TOLERANCE = 1e-6


def load_program():
    specification = importlib.util.spec_from_file_location("keras_program", PROGRAM)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class Job:
    """What the workers have found so far."""

    def __init__(self, folder):
        self.folder = folder
        self.program = load_program()

    def result(self, name):
        """What both workers found, once they have come to it."""
        while True:
            has_ended = (self.folder / "returncode").exists()
            files = [self.folder / f"worker{rank}.json" for rank in (0, 1)]
            told = [json.loads(file.read_text()) if file.exists() else {} for file in files]
            found = [results.get(name) for results in told]
            if None not in found:
                break
            assert not has_ended, (self.folder / "output").read_text()[-5000:]
            time.sleep(0.2)
        assert not [text for text in found if isinstance(text, str)], found
        assert found[0] == found[1]
        return found[0]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Start the program once, also where several test processes share these tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "keras_workers"
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "shared").exists():
                (folder / "shared").mkdir()
                stack.enter_context(running(folder))
        yield Job(folder)


@contextlib.contextmanager
def running(folder):
    """The job, which ends by itself."""
    ours = ("JAX_", "XLA_", "REPLICAX_", "PYTEST_", "COV_")
    environment = {n: v for n, v in os.environ.items() if not n.startswith(ours)} | {
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": str(SOURCE),
        "PYTHONWARNINGS": "error,ignore:__array__ implementation doesn't accept a copy keyword",
        "REPLICAX_CPU_DEVICES": "2",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    run = [sys.executable, "-m", "replicax", "run", "--standalone", "--nproc-per-node", "2"]
    run += ["--max-restarts", "1"]  # The first check kills a worker.
    # The shell tells that it has ended, whoever asks.
    command = ["/bin/sh", "-c", '"$@"; echo $? > "$0"', folder / "returncode", *run]
    with (folder / "output").open("w") as output:
        launcher = subprocess.Popen(
            [*command, PROGRAM, folder],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
        launcher.wait(60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()


# The reference is trained while the workers start.
@pytest.fixture(scope="module")
def reference(job):
    one = job.program.rich_model()
    stop = keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=1)
    history = one.fit(**job.program.options(), callbacks=[stop]).history
    predicted = one.predict(job.program.rows()[0], batch_size=6, verbose=0)
    return history, job.program.arrays(one), predicted, stop.stopped_epoch


def test_c8_workers_start_from_the_same_weights(job):
    assert len(job.result("unseeded")) == 2


def test_a_loop_over_workers_equals_one_device(job):
    """The same step on one device, by the same function."""
    expected = job.program.a_step(rx.OneDeviceStrategy("cpu:0"), None)
    losses, weights, mean = job.result("a_step")

    check(losses, expected[0])
    check([np.ravel(w).tolist() for w in weights], [np.ravel(w).tolist() for w in expected[1]])
    check([mean], [expected[2]])


def test_l1_f13_fit_over_workers_equals_one_device(reference, job):
    history, weights, predicted, stopped = job.result("fit_on_arrays")

    assert stopped == reference[3] == 1  # all stop after the same epoch
    check(history, reference[0])
    check(weights, reference[1])
    check(predicted, reference[2])


def test_i3_one_worker_writes(reference, job):
    predicted = job.result("fit_on_arrays")[2]

    shared = job.folder / "shared"
    assert sorted(file.name for file in shared.iterdir()) == ["best.keras", "log.csv"]
    with (shared / "log.csv").open() as log:
        check([float(line["loss"]) for line in csv.DictReader(log)], reference[0]["loss"])
    best = keras.saving.load_model(shared / "best.keras")  # on one device
    check(best.predict(job.program.rows()[0], verbose=0), predicted)


def test_b14_own_methods_over_workers_equal_one_device(job):
    one = job.program.rich_model()
    x, y = job.program.rows()
    expected = one.fit(x, y, batch_size=11, shuffle=False, verbose=0).history
    history, weights, evaluated = job.result("own_methods_on_datasets")

    check(history, expected)
    check(weights, job.program.arrays(one))
    check(evaluated, one.evaluate(x, y, verbose=0))  # workers held 5 and 6 rows


def test_a_killed_job_goes_on_with_its_backup(job):
    one = job.program.small_model()
    x, y = (part[:8] for part in job.program.rows())
    whole = one.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history
    history, weights, is_left = job.result("resumed")

    check(history, {"loss": whole["loss"][1:]})  # the second epoch anew
    check(weights, job.program.arrays(one))
    assert not is_left


def test_own_methods_that_would_be_wrong_are_refused(job):
    told, has_written = job.result("refused")

    assert list(told) == [
        "fit of arrays",
        "evaluate of arrays",
        "predict of arrays",
        "train_on_batch",
        "validation",
        "fit that writes",
        "predict",
    ]
    assert all("rx.keras.fit(" in text for name, text in told.items() if name != "predict")
    assert "rx.keras.predict(model" in told["predict"]
    assert "CSVLogger" in told["fit that writes"]
    assert not has_written


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
