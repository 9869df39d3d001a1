"""One job of two workers with two devices each; each test here waits for its part of it."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import replicax as rx

WORKERS = 2
PATIENCE_S = 300
SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = Path(__file__).with_name("program.py")


class Job:
    """What the workers have done so far.

    Attributes:
        folder: A folder that the workers share.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.folder = folder / "shared"

    def results(self, check: str) -> list[dict[str, Any]]:
        """What came of a check on each worker, once both have come to it or ended."""
        while True:
            has_ended = self.returncode() is not None
            found = [self._read(rank).get(check) for rank in range(WORKERS)]
            if all(one is not None for one in found) or has_ended:
                return [one or {} for one in found]
            time.sleep(0.05)

    def returncode(self) -> int | None:
        """The exit status of the launcher; None while it runs."""
        file = self._folder / "returncode"
        text = file.read_text() if file.exists() else ""
        return int(text) if text.endswith("\n") else None

    def output(self) -> str:
        """The end of what the launcher and the workers printed."""
        return (self._folder / "output").read_text()[-5000:]

    def _read(self, rank: int) -> dict[str, Any]:
        file = self._folder / f"worker{rank}.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """The workers of `program.py`."""
    with shared_job(tmp_path_factory, PROGRAM) as job:
        yield job


@contextlib.contextmanager
def shared_job(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Iterator[Job]:
    """Start the program once, also where several test processes share these tests."""
    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = common / "_".join(program.with_suffix("").parts[-2:])
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        with locked(folder / "lock"):
            if not (folder / "shared").exists():
                (folder / "shared").mkdir()
                stack.enter_context(running(folder, program))
        yield Job(folder)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def variables(devices: int) -> dict[str, str]:
    """Of a launcher: nothing of ours, CPU devices, and what was compiled before."""
    ours = ("JAX_", "XLA_", "REPLICAX_", "PYTEST_", "COV_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return clean | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": os.environ["REPLICAX_TESTS_COMPILED"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PYTHONPATH": str(SOURCE),
        "PYTHONWARNINGS": "error",
        "REPLICAX_CPU_DEVICES": str(devices),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),  # compiled as other tests are
    }


@pytest.fixture
def environment() -> Callable[[int], dict[str, str]]:
    """`environment(devices)`: the variables of a launcher."""
    return variables


@pytest.fixture
def launched() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`launched(*words, devices=1)`: start `replicax run` with these words."""
    started = []

    def launch(*words: Any, devices: int = 1, **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "replicax", "run", *map(str, words)],
            env=variables(devices) | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()  # Its guard ends the workers.
        process.wait()
        process.stdout.close()


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module beside this one."""
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    yield importlib.import_module("training")
    del sys.modules["training"]


@pytest.fixture
def one_device(training: Any, tmp_path: Path) -> tuple[Any, Any]:
    """The training on one device: its weights, and its steps."""
    folder = tmp_path / "one"
    folder.mkdir()
    weights = training.train(rx.OneDeviceStrategy("cpu:0"), folder)
    return weights, training.steps(training.told(folder, 0))


@contextlib.contextmanager
def running(folder: Path, program: Path) -> Iterator[None]:
    """The job, which ends by itself."""
    run: list[Any] = [
        sys.executable,
        "-m",
        "replicax",
        "run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    # The shell tells how it ended, whoever asks.
    command = ["/bin/sh", "-c", '"$@"; echo $? > "$0"', folder / "returncode", *run]
    command += [program, folder, folder / "shared"]
    with (folder / "output").open("w") as output:
        launcher = subprocess.Popen(
            command,
            env=variables(devices=2),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
        launcher.wait(PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
