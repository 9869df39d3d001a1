"""`run_workers`: results, exceptions, kills and freezes of real processes."""

from __future__ import annotations

import importlib.util
import pathlib
import signal
import sys
import threading
import time

import pytest

from replicax import errors
from replicax.testing import run_workers

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def functions():
    """The module beside this one, as a user's own module."""
    spec = importlib.util.spec_from_file_location("functions", HERE / "functions.py")
    module = sys.modules["functions"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["functions"]


def test_each_worker_has_its_own_end(functions):
    returned, raised, killed, strange, lock = run_workers(
        5, functions.mixed, "hello", devices_per_worker=3
    )

    assert returned.unwrap() == {"rank": 0, "devices": "3"}
    assert (returned.exit_code, returned.error, returned.timed_out) == (0, None, False)
    assert (returned.stdout, returned.stderr) == ("worker 0 of 5 hello\n", "to stderr\n")
    assert 0 < returned.seconds < 50

    assert (type(raised.error), raised.error.args) == (KeyError, ("boom",))
    assert raised.exit_code == 1
    assert "mixed" in raised.traceback
    with pytest.raises(KeyError) as caught:
        raised.unwrap()
    assert "In worker 1" in caught.value.__notes__[0]

    assert killed.exit_code == -signal.SIGKILL
    with pytest.raises(errors.UnavailableError, match="without a result"):
        killed.unwrap()

    assert isinstance(strange.error, errors.InternalError)
    assert "NoWayBackError" in strange.traceback
    assert isinstance(lock.error, errors.InternalError)


def test_a_frozen_worker_is_killed_in_time_and_the_other_is_not(functions):
    started = time.monotonic()
    left, frozen = run_workers(2, functions.freeze, timeout=5)

    assert left.unwrap() == "left"
    assert (frozen.timed_out, frozen.exit_code) == (True, -signal.SIGKILL)
    assert isinstance(frozen.error, errors.UnavailableError)
    assert time.monotonic() - started < 15


@pytest.mark.slow
def test_workers_have_the_devices_that_were_asked_for(functions):
    (result,) = run_workers(
        1, functions.devices, devices_per_worker=3, environment={"XLA_FLAGS": None}
    )

    assert result.unwrap() == (3, "cpu")


def test_what_a_fresh_process_cannot_import_is_refused():
    def inner():
        pass

    for function in (inner, lambda: None):
        with pytest.raises(errors.InvalidArgumentError, match="top level of a module"):
            run_workers(1, function)


def test_what_cannot_be_pickled_is_refused(functions):
    with pytest.raises(errors.ArgumentTypeError, match="pickled"):
        run_workers(1, functions.mixed, threading.Lock())


@pytest.mark.parametrize(
    "wrong",
    [{"n": 0}, {"devices_per_worker": 0}, {"timeout": 0}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_numbers_are_above_0(functions, wrong):
    with pytest.raises(errors.InvalidArgumentError, match="above 0"):
        run_workers(**{"n": 1, "fn": functions.freeze, **wrong})
