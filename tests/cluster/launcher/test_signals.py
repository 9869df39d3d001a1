"""Signals to the launcher, and its death."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

import replicax as rx
from replicax.cluster import launch

SOURCE = pathlib.Path(__file__).resolve().parents[3] / "src"
PROGRAM = """
    def leave(number, frame):
        print("got", signal.Signals(number).name, flush=True)
        if len(sys.argv) > 2:
            sys.exit(int(sys.argv[2]))

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    name = f"{sys.argv[1]}/{rank}.{os.environ['REPLICAX_RESTART']}"
    with open(name, "w") as file:
        file.write(str(os.getpid()))
    os.rename(name, name + ".pid")
    while True:
        time.sleep(0.05)
"""


def pids(folder):
    return [int(path.read_text()) for path in sorted(folder.glob("*.pid"))]


def is_alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(is_true, seconds):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


@pytest.fixture
def signals(tmp_path):
    """`signals(*names)`: send them to this process, each after the last, once two workers run."""
    threads = []

    def send(*names):
        def run():
            until(lambda: len(pids(tmp_path)) == 2, 20)  # so the launcher handles them by now
            for name in names:
                os.kill(os.getpid(), signal.Signals[name])
                time.sleep(0.5)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield send
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("name", "own", "expected"), [("SIGTERM", 0, 143), ("SIGINT", 75, 75)], ids=["143", "75"]
)
def test_a_signal_is_handed_on_and_nothing_is_started_again(
    options, signals, tmp_path, capfd, name, own, expected
):
    before = signal.getsignal(signal.SIGTERM)
    signals(name)

    assert launch(options(PROGRAM, tmp_path, own, workers=2, max_restarts=3)) == expected
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == [f"[{rank}] got {name}" for rank in range(2)]
    assert f"ended by {name}" in err
    assert "first failure" not in err
    assert len(pids(tmp_path)) == 2
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_all_at_once(options, signals, tmp_path, capfd):
    patient = rx.Timeouts(start=20, shutdown=60)
    signals("SIGTERM", "SIGTERM")

    assert launch(options(PROGRAM, tmp_path, workers=2, timeouts=patient)) == 143
    assert "ended by SIGTERM" in capfd.readouterr().err


def test_a_signal_that_was_ignored_stays_ignored(options, signals, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        signals("SIGHUP", "SIGTERM")
        assert launch(options(PROGRAM, tmp_path, 0, workers=2)) == 143
    finally:
        signal.signal(signal.SIGHUP, before)


def test_no_worker_outlives_a_killed_launcher(options, tmp_path):
    # The variable and the flag: both ways to tell the command.
    command = [sys.executable, "-m", "replicax", "run", "--standalone", "--shutdown-timeout=1"]
    program = options(PROGRAM).command[-1]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "REPLICAX_RUN_NPROC_PER_NODE": "2"}
    with subprocess.Popen(
        [*command, program, str(tmp_path)], env=environment, stdout=subprocess.DEVNULL
    ) as process:
        try:
            until(lambda: len(pids(tmp_path)) == 2, 40)
        finally:
            process.kill()
    # They are deaf to SIGTERM, so this takes the guard to the end: 1 s to hear of it, 1 s, SIGKILL.
    until(lambda: not any(map(is_alive, pids(tmp_path))), 10)
