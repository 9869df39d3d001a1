"""A frozen process is told from a busy one, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from replicax.cluster._silence import Silence, identity

PATIENCE_S = 0.6

# The lock of Python is held for seconds by native code: no thread of Python can send a beacon.
BUSY = "x = 3 ** 30_000_000"
IDLE = "import time; time.sleep(60)"


@pytest.fixture
def process():
    started = []

    def start(program):
        started.append(subprocess.Popen([sys.executable, "-c", program]))
        return started[-1]

    yield start
    for each in started:
        each.send_signal(signal.SIGCONT)
        each.kill()
        each.wait()


def seconds_until_over(who, limit=60.0, at_most=2.0):
    """How long a process that says nothing is taken for alive; None where it still is."""
    began = time.monotonic()
    silence = Silence(who, patience=PATIENCE_S, limit=limit, now=began)
    while (now := time.monotonic()) - began < at_most:
        if silence.is_over(now):
            return now - began
        time.sleep(0.02)
    return None


def here(process):
    return {**identity(), "pid": process.pid}


def test_a_busy_process_of_this_host_is_not_given_up(process):
    assert seconds_until_over(here(process(BUSY))) is None


def test_a_busy_process_is_given_up_at_the_limit(process):
    assert 1.0 < seconds_until_over(here(process(BUSY)), limit=1.0) < 1.5


def test_a_stopped_process_is_given_up_after_the_patience(process):
    stopped = process(BUSY)
    stopped.send_signal(signal.SIGSTOP)

    assert PATIENCE_S < seconds_until_over(here(stopped)) < PATIENCE_S + 0.5


def test_a_process_that_does_nothing_is_given_up(process):
    idle = process(IDLE)
    time.sleep(0.5)  # until it has started

    assert PATIENCE_S < seconds_until_over(here(idle)) < PATIENCE_S + 0.5


def test_a_process_that_is_gone_is_given_up(process):
    gone = process("pass")
    gone.wait()

    assert PATIENCE_S < seconds_until_over(here(gone)) < PATIENCE_S + 0.5


@pytest.mark.parametrize(
    "who",
    [
        pytest.param(None, id="unknown"),
        pytest.param({"pid": os.getpid(), "host": "elsewhere"}, id="another host"),
        pytest.param({"host": identity()["host"], "pid": "x"}, id="nonsense"),
        pytest.param("nonsense", id="text"),
    ],
)
def test_a_process_elsewhere_can_only_be_heard(who):
    assert PATIENCE_S < seconds_until_over(who) < PATIENCE_S + 0.5


def test_a_sign_of_life_starts_anew():
    silence = Silence(None, patience=1.0, limit=1.0, now=0.0)
    silence.heard(5.0)

    assert not silence.is_over(5.9)
    assert silence.is_over(6.1)
