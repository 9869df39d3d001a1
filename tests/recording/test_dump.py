"""A record: what is in it, where it is written, and SIGUSR1."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
import time

import pytest

from replicax import errors, recording
from replicax.recording import RECORDER, dump_on_signal, ignore_signal


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(recording.FOLDER, str(tmp_path / "records"))
    return tmp_path / "records"


@pytest.fixture
def listening():
    assert dump_on_signal()
    yield
    ignore_signal()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


@pytest.fixture
def other_thread():
    """A thread that waits in a function of its own."""
    there, go_on = threading.Event(), threading.Event()

    def waits_for_the_test():
        there.set()
        go_on.wait()

    thread = threading.Thread(target=waits_for_the_test, name="the other one")
    thread.start()
    there.wait()
    yield
    go_on.set()
    thread.join()


def test_a_record_has_the_stacks_of_all_threads(other_thread):
    record = recording.snapshot("a test")

    main, *others = record["stacks"]
    assert main["is_main"]
    assert "test_a_record_has_the_stacks" in main["frames"][0]
    (other,) = [stack for stack in others if stack["thread"] == "the other one"]
    assert any("waits_for_the_test" in frame for frame in other["frames"])
    assert json.loads(json.dumps(record)) == record
    assert abs(record["now"] + record["wall_offset"] - time.time_ns()) < 60e9


def test_a_dump_is_a_file_that_only_its_user_can_read(folder):
    path = recording.dump(reason="a test")

    assert path == folder / "worker-0.json"
    assert json.loads(path.read_text())["reason"] == "a test"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in folder.iterdir()] == ["worker-0.json"]


def test_the_usual_folder_is_this_users_own(tmp_path, monkeypatch):
    monkeypatch.setattr(recording._places.tempfile, "tempdir", str(tmp_path))
    usual = recording.default_folder() / "a-job"

    assert recording.own_folder(usual) == usual
    assert stat.S_IMODE(usual.parent.stat().st_mode) == 0o700

    usual.rmdir()
    usual.parent.rmdir()
    usual.parent.symlink_to(tmp_path)
    with pytest.raises(errors.FailedPreconditionError, match="not this user's own"):
        recording.own_folder(usual)


def test_a_signal_writes_the_record(folder, listening, caplog):
    subject = RECORDER.subject("meeting", "before the signal", "here")
    with RECORDER.recorded(subject):
        os.kill(os.getpid(), signal.SIGUSR1)  # Python runs its handler at the next line.
        time.sleep(0)

    record = json.loads((folder / "worker-0.json").read_text())
    assert record["reason"] == "SIGUSR1"
    last = record["entries"][-1]
    assert record["subjects"][last[0]]["name"] == "before the signal"
    assert last[2:] == [0, None, None]
    assert "test_a_signal_writes_the_record" in record["stacks"][0]["frames"][0]
    assert str(folder / "worker-0.json") in caplog.text


def test_a_signal_that_cannot_write_says_so(tmp_path, monkeypatch, listening, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv(recording.FOLDER, str(tmp_path / "file" / "below"))

    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0)

    assert "could not be written" in caplog.text


def test_a_handler_of_the_program_is_left_alone():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        assert not dump_on_signal()
        ignore_signal()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_another_thread_cannot_set_it():
    found = []
    thread = threading.Thread(target=lambda: found.append(dump_on_signal()))
    thread.start()
    thread.join()

    assert found == [False]
