"""The leak police catches what it is there for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

LEAKY = """
    import os, subprocess, sys, threading

    stop = threading.Event()

    def test_clean():
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()

    def test_puts_the_environment_back(monkeypatch):
        monkeypatch.setenv("CLEAN", "1")

    def test_thread():
        threading.Thread(target=stop.wait, args=(30,), name="stray", daemon=True).start()

    def test_process():
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(5)"])

    def test_variable():
        os.environ["STRAY"] = "1"

    def test_variable_is_put_back():
        assert "STRAY" not in os.environ
        stop.set()
"""


def test_what_is_left_behind_fails_the_test(tmp_path):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_leaky.py").write_text(textwrap.dedent(LEAKY), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    done = subprocess.run(
        command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )

    assert "6 passed, 3 errors" in done.stdout, done.stdout + done.stderr
    assert "threads still running: ['stray']" in done.stdout
    assert "child processes still there" in done.stdout
    assert "environment variables changed: ['STRAY']" in done.stdout
