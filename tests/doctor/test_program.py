"""`replicax doctor` as a program, on a machine that is fine and with settings that are not."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replicax.doctor import _backend, _dead_peer, _process
from replicax.testing import run_workers

HERE = Path(__file__).parent
SOURCE = str(Path(_backend.__file__).parents[2])
LIMIT_S = 55


@pytest.fixture
def workers():
    """The module beside this one, as a user's own module."""
    name = "doctor_of_workers"
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


def doctor(*arguments, limits="true", program=("-m", "replicax", "doctor"), **environment):
    """The report of `replicax doctor --json` as a user starts it, and its exit code."""
    ours = ("JAX_", "XLA_", "REPLICAX_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, "-W", "error", *program, *arguments, "--json"]
    ended = subprocess.run(
        ["/bin/sh", "-c", f"{limits}; exec {shlex.join(command)}"],
        env={**clean, "JAX_PLATFORMS": "cpu", "PYTHONPATH": SOURCE, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert ended.stdout.startswith("{"), ended.stderr
    return json.loads(ended.stdout), ended.returncode


def by_id(report):
    return {one["id"]: one for one in report["findings"]}


def test_each_bad_setting_is_found_by_itself():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        report, code = doctor(
            "--quick",
            f"--host=127.0.0.1:{port}",
            "--host=no-such-host.invalid",
            f"--port={port}",
            limits="ulimit -n 60",
            JAX_PLATFORMS="no_such_platform",
            CUDA_VISIBLE_DEVICES="",
            http_proxy="http://user:word@proxy:3128",
            no_proxy="127.0.0.1",
        )

    found = by_id(report)
    failures = {one["id"] for one in report["findings"] if one["status"] == "failure"}
    assert code == 1
    assert failures == {"backend", "hosts", "open-files", "ports", "proxies"}
    assert "JAX_PLATFORMS is 'no_such_platform'" in found["backend"]["why"]
    assert "This process may open 60 files" in found["open-files"]["what"]
    assert str(port) in found["ports"]["what"]
    hosts = {one["status"]: one["what"] for one in report["findings"] if one["id"] == "hosts"}
    assert hosts["failure"].startswith("no-such-host.invalid has no address")
    assert "it answers" in hosts["ok"]
    assert "http_proxy would send connections to no-such-host.invalid" in found["proxies"]["what"]
    assert "word" not in json.dumps(report["workers"])


def test_the_devices_of_a_process_exchange_numbers():
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "3", "JAX_PLATFORMS": "cpu"}

    found = _backend.backend(environment, LIMIT_S, is_quick=False)

    assert (found["stage"], len(found["devices"])) == ("over", 3)
    assert [one["devices"] for one in found["pairs"]] == [[0, 1], [0, 2], [1, 2]]
    for one in [found["group"], *found["pairs"]]:
        assert one["is_right"]
        assert one["latency"] > 0
        assert one["bandwidth"] > 0


@pytest.mark.slow
def test_the_death_of_a_process_is_noticed_by_its_peer():
    found = _dead_peer.dead_peer(os.environ, LIMIT_S)

    assert found["kind"] == "signal", found
    assert found["is_right"]
    assert 0 < found["seconds"] < LIMIT_S


@pytest.mark.slow
def test_workers_that_do_not_match_are_told_apart_before_they_fail(workers):
    results = run_workers(2, workers.with_other_devices)

    for told, message in [result.unwrap() for result in results]:
        assert told["differ"] == ["worker", "host", "devices"]
        assert (told["clocks"], told["workers"]) == ("ok", "failure")
        assert "do not have equal devices" in message


def test_a_driver_that_hangs_is_a_finding():
    found = _backend.backend(os.environ, 0.05, is_quick=True)

    assert (found["how"], found["stage"]) == ("did not end in time", "importing replicax")


def test_an_end_of_the_process_of_jax_is_a_finding():
    environment = {**os.environ, "XLA_FLAGS": "--xla_no_such_flag=1"}

    found = _backend.backend(environment, LIMIT_S, is_quick=True)

    assert found["stage"] == "starting jax's devices"
    assert found["how"] != "did not end in time"
    assert "xla_no_such_flag" in found["stderr"]


def test_a_job_that_does_not_end_is_a_finding():
    found = _dead_peer.dead_peer(os.environ, 0.05)

    assert found["how"] == "did not end in time"


def test_what_a_child_leaves_behind_ends_with_it():
    command = ["/bin/sh", "-c", "sleep 50 & echo $!; wait"]

    ended = _process.run(command, 0.3, os.environ)

    assert ended.code is None
    while Path(f"/proc/{int(ended.stdout)}").exists():  # its new parent may take a moment
        time.sleep(0.01)
