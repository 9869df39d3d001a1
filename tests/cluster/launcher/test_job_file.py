"""The file by which `replicax inspect` finds a job: there while it runs, and without its secret."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import pytest

from replicax.cluster._launcher._job_file import JOB_FILE, is_running, job_file
from replicax.recording import default_folder


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def listed(tmp_path, records=None):
    return job_file(
        job="a1", control="127.0.0.1:5", secret_file=str(tmp_path / "secret"), records=records
    )


def test_it_is_there_while_the_job_runs(tmp_path):
    with listed(tmp_path) as folder:
        file = folder / JOB_FILE
        told = json.loads(file.read_text())
        assert folder == default_folder() / "a1"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert is_running(file)
    assert (told["control"], told["secret_file"]) == ("127.0.0.1:5", str(tmp_path / "secret"))
    assert not folder.exists()


def test_records_stay(tmp_path):
    with listed(tmp_path, tmp_path / "logs" / "records") as folder:
        assert (default_folder() / "a1" / JOB_FILE).exists()
        (folder / "worker-0.json").touch()
    assert [file.name for file in (tmp_path / "logs" / "records").iterdir()] == ["worker-0.json"]
    assert not (default_folder() / "a1").exists()


def test_a_job_runs_without_it(tmp_path):
    default_folder().touch()  # Where a folder should be.
    with listed(tmp_path) as folder:
        assert not (folder / JOB_FILE).exists()


def test_that_of_a_launcher_that_is_gone_does_not_count(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    file = tmp_path / JOB_FILE
    file.write_text(json.dumps({"pid": gone.pid}))

    assert not is_running(file)
    assert not is_running(tmp_path / "nothing.json")
