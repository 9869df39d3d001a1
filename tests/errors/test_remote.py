"""The failure of another worker as an instance of the user's class too."""

from __future__ import annotations

import copy
import pickle
import sys

import pytest

import replicax.errors as rx_errors
from replicax.errors import Origin, WorkerFailedError, worker_failed


class UserError(ValueError):
    pass


class DemandingError(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)

    def __str__(self):
        return self.missing


class FixedError(Exception):
    message = property(lambda self: "fixed")


class Outer:
    class InnerError(LookupError):
        pass


def named(cls):
    return f"{cls.__module__}:{cls.__qualname__}"


def build(cls_or_name):
    name = cls_or_name if isinstance(cls_or_name, str) else named(cls_or_name)
    return worker_failed(
        "Worker 1 failed.",
        origin=Origin(job="worker", task=1, step=3),
        kind="exception",
        remote_traceback="Traceback ...",
        remote_class=name,
    )


BOTH = [
    UserError,
    Outer.InnerError,
    KeyError,
    OSError,
    UnicodeDecodeError,
    StopIteration,
    DemandingError,
    rx_errors.VaryingWriteError,
    rx_errors.StartupError,
]


@pytest.mark.parametrize("cls", BOTH, ids=lambda cls: cls.__name__)
def test_it_is_an_instance_of_both(cls):
    error = build(cls)

    assert isinstance(error, cls)
    assert isinstance(error, WorkerFailedError)
    assert cls.__name__ in type(error).__name__
    assert str(error) == "Worker 1 failed.\nWhere: job worker, task 1, step 3"


@pytest.mark.parametrize("copier", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])  # noqa: S301
@pytest.mark.parametrize("cls", BOTH, ids=lambda cls: cls.__name__)
def test_copies_keep_everything(cls, copier):
    error = build(cls)
    error.add_note("a note")

    copied = copier(error)

    assert type(copied) is type(error)
    assert copied.__dict__ == error.__dict__
    assert str(copied) == str(error)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("builtins:SystemExit", id="ends the process"),
        pytest.param("builtins:KeyboardInterrupt", id="ends the process too"),
        pytest.param("builtins:len", id="no class"),
        pytest.param("builtins:int", id="no exception"),
        pytest.param("builtins:RuntimeError", id="a base class"),
        pytest.param("no.such.module:Oops", id="unknown module"),
        pytest.param("builtins:f.<locals>.Oops", id="local"),
        pytest.param("nonsense", id="nonsense"),
        pytest.param("", id="empty"),
        pytest.param(named(FixedError), id="it refuses a message"),
        pytest.param("replicax.errors:WorkerFailedError", id="itself"),
    ],
)
def test_where_it_cannot_be_both_it_is_plain(name):
    error = build(name)

    assert type(error) is WorkerFailedError
    assert (error.kind, error.origin.task, error.remote_traceback) == (
        "exception",
        1,
        "Traceback ...",
    )


def test_no_module_is_imported_for_a_name():
    assert "antigravity" not in sys.modules

    assert type(build("antigravity:Oops")) is WorkerFailedError
    assert "antigravity" not in sys.modules


def test_a_class_that_is_gone_leaves_the_plain_error(monkeypatch):
    data = pickle.dumps(build(UserError))
    monkeypatch.delitem(globals(), "UserError")

    error = pickle.loads(data)  # noqa: S301

    assert type(error) is WorkerFailedError
    assert error.message == "Worker 1 failed."
