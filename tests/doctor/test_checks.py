"""What facts mean. The facts are files, or what this machine tells, with one thing changed."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path

import pytest

import replicax.doctor
from replicax.cli import main
from replicax.doctor import Finding, Report, _examine, _machine
from replicax.doctor._check_exchange import outliers, pairs
from replicax.doctor._findings import IDS
from replicax.doctor._workers import clocks, differences
from replicax.errors import InternalError, InvalidArgumentError

DOCS = Path(__file__).parents[2] / "docs" / "doctor.md"


@pytest.fixture(scope="module")
def here():
    """What is known of this machine, without what takes a second; jax has found one CPU."""
    wanted = _examine._parts({}, [], 29400, is_quick=True, rank=0)
    del wanted["backend"], wanted["own_name"], wanted["gpu_memory"]
    facts = _examine.gathered(wanted)
    device = {"id": 0, "kind": "cpu"}
    facts["backend"] = {"platform": "cpu", "devices": [device], "seconds": 0.1, "notes": []}
    facts["own_name"] = {"name": "node0", "addresses": ["10.0.0.1"], "error": None}
    facts["gpu_memory"] = {"gpus": []}
    facts["asked"] = {"hosts": [], "ports": False, "several_hosts": False}
    facts["asked"] |= {"devices": None, "local_workers": 1}
    return facts


def judged(facts, kind, **changes):
    """The finding of a kind, with parts of the facts changed."""
    facts = copy.deepcopy(facts)
    for part, changed in changes.items():
        facts[part] = {**facts[part], **changed} if isinstance(changed, dict) else changed
    (found,) = [one for one in _examine.judged(facts) if one.id == kind]
    return found


def machine(root, gpus, driver="570.124.06"):
    """A file system with that many GPUs."""
    for number in range(gpus):
        (root / f"proc/driver/nvidia/gpus/0000:{number:02}:00.0").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
    )
    return _machine.hardware(root)


def test_every_kind_of_finding_is_explained():
    headings = re.findall(r"^### `(.+)`$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(headings) == sorted(IDS)
    with pytest.raises(InternalError, match="no kind of finding 'unknown'"):
        Finding(id="unknown", what="")


def test_nothing_of_this_machine_fails_the_examination_itself(here):
    assert [one for one in _examine.judged(here) if one.id == "examination"] == []


@pytest.mark.parametrize(
    ("settings", "kind", "status", "words"),
    [
        ({}, "unused-devices", "failure", "no plugin of jax for them is installed"),
        ({"JAX_PLATFORMS": "cpu"}, "hidden-devices", "warning", "jax starts no other platforms"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "hidden-devices", "warning", "it hides all"),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, "hidden-devices", "warning", "what follows '7'"),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, "hidden-devices", "warning", "without GPUs"),
    ],
    ids=["no plugin", "platforms", "none", "a number that is not there", "container"],
)
def test_gpus_that_jax_does_not_use(here, tmp_path, settings, kind, status, words):
    found = judged(here, kind, hardware=machine(tmp_path, 2), settings=settings)

    assert found.status == status
    assert "2 GPU" in found.what
    assert words in f"{found.what} {found.why}"


def test_gpus_that_jax_uses_in_part(here, tmp_path):
    changes = {
        "backend": {"platform": "gpu", "devices": [{"id": 0, "kind": "H100"}]},
        "settings": {"CUDA_VISIBLE_DEVICES": "1"},
        "hardware": machine(tmp_path, 4),
    }

    found = judged(here, "hidden-devices", **changes)
    assert found.what.startswith("jax sees 1 of 4 GPU")
    assert found.status == "warning"
    found = judged(here, "hidden-devices", **changes, asked={"local_workers": 4})
    assert (found.status, "share of one of 4 workers" in found.what) == ("ok", True)


def test_another_number_of_devices_than_expected(here):
    assert judged(here, "devices", asked={"devices": 1}).status == "ok"
    found = judged(here, "devices", asked={"devices": 8})
    assert (found.status, "1 CPU device of this process, not 8" in found.what) == ("failure", True)


@pytest.mark.parametrize(
    ("plugin", "status"), [("jax-cuda12-plugin", "ok"), ("jax-cuda13-plugin", "failure")]
)
def test_a_driver_that_is_too_old_for_the_plugin(here, tmp_path, plugin, status):
    versions = {"plugins": {plugin: here["versions"]["jaxlib"]}}

    found = judged(here, "driver", hardware=machine(tmp_path, 1), versions=versions)

    assert (found.status, "570.124.06" in found.what) == (status, True)


def test_a_plugin_of_another_release_than_jax(here):
    found = judged(here, "plugins", versions={"plugins": {"jax-cuda12-plugin": "0.4.1"}})

    assert found.status == "warning"


def test_settings_that_ask_for_other_numbers_of_devices(here):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}

    assert judged(here, "cpu-devices", settings=flags).status == "failure"
    assert judged(here, "cpu-devices", settings={"JAX_NUM_CPU_DEVICES": "1"}).status == "ok"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
    ids=["second generation", "no limit", "first generation", "no limit in the first", "none"],
)
def test_the_share_of_cpus_of_a_control_group(tmp_path, files, quota):
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert _machine.cpus(tmp_path)["quota"] == quota


def test_fewer_cpus_than_libraries_count(here):
    few = {"count": 64, "allowed": 64, "quota": 2.0}

    assert "NPROC=2" in judged(here, "cpus", cpus=few, settings={}).fix
    assert judged(here, "cpus", cpus=few, settings={"NPROC": "2"}).status == "ok"


def test_the_memory_of_a_control_group_counts_where_it_is_less(here, tmp_path):
    (tmp_path / "proc").mkdir()
    text = "MemTotal: 64000000 kB\nMemFree: 1 kB\nMemAvailable: 60000000 kB\n"
    (tmp_path / "proc/meminfo").write_text(text)
    groups = tmp_path / "sys/fs/cgroup"
    groups.mkdir(parents=True)
    (groups / "memory.max").write_text(f"{1 << 30}\n")
    (groups / "memory.current").write_text(f"{1000 << 20}\n")

    found = _machine.memory(tmp_path)

    assert found == {"total": 1 << 30, "free": 24 << 20}
    assert judged(here, "memory", memory=found).status == "failure"


def test_little_shared_memory(here):
    small = {"total": 64 << 20, "free": 64 << 20}

    assert judged(here, "shared-memory", shared_memory=small).status == "ok"
    several = {"nvidia": 8}
    found = judged(here, "shared-memory", shared_memory=small, hardware=several)
    assert found.status == "warning"


@pytest.mark.parametrize(
    ("addresses", "hosts", "status"),
    [(["127.0.1.1"], False, "ok"), (["127.0.1.1"], True, "warning"), ([], False, "warning")],
    ids=["loopback on one host", "loopback on several", "no address"],
)
def test_where_the_name_of_the_host_leads(here, addresses, hosts, status):
    name = {"addresses": addresses, "error": "unknown"}

    found = judged(here, "host-name", own_name=name, asked={"several_hosts": hosts})

    assert found.status == status


def measured(first, second, *, latency=10e-6, bandwidth=1e10, is_right=True):
    facts = {"latency": latency, "bandwidth": bandwidth, "is_right": is_right}
    return {"devices": [first, second], **facts}


def test_a_slow_pair_is_named_and_a_wrong_one_fails():
    usual = [measured(0, 1), measured(0, 2), measured(1, 2)]
    slow, late = measured(0, 3, bandwidth=2e9), measured(1, 3, latency=900e-6)

    assert outliers([*usual, slow, late]) == [slow, late]
    (found,) = pairs("device-pairs", [*usual, slow, late], 6, are_alike=False)
    assert (found.status, found.table.rows[0][0]) == ("warning", "0 and 3")
    (found,) = pairs("device-pairs", [*usual, slow], 6, are_alike=True)
    assert (found.status, found.what[:11]) == ("ok", "4 of 6 pair")
    (found,) = pairs("device-pairs", [*usual, measured(2, 3, is_right=False)], 6, are_alike=True)
    assert (found.status, len(found.table.rows)) == ("failure", 1)


def test_clocks_that_are_apart_are_told_in_a_table():
    (found,) = clocks([(0.0, 0.0), (-3.0, 0.01)])
    assert (found.status, found.table.rows[1][1]) == ("warning", -3.0)
    (found,) = clocks([(0.0, 0.0), (-3.0, 2.5)])  # not sure enough
    assert found.status == "ok"


def test_what_workers_may_and_may_not_differ_in(here):
    one = {**here, "compared": {"jax": "0.10.2"}}
    other = {**one, "cpus": {"count": 3}, "compared": {"jax": "0.10.1"}}

    (found,) = differences([one, {**one, "cpus": {"count": 3}}])
    assert (found.status, found.table.columns[2:]) == ("warning", ("CPUs",))
    (found,) = differences([one, other])
    assert (found.status, found.table.columns[2:]) == ("failure", ("jax", "CPUs"))
    (found,) = differences([one, one])
    assert (found.status, found.table) == ("ok", None)


def test_a_part_that_fails_is_a_finding_and_the_others_go_on(here):
    def no_such_file():
        return Path(os.devnull, "nothing").read_text()

    facts = {**here, **_examine.gathered({"memory": no_such_file})}
    facts["limits"] = {}  # which the check does not expect

    found = list(_examine.judged(facts))

    told = {one.status: one.what for one in found if one.id == "examination"}
    assert "memory could not be looked at: NotADirectoryError" in told["skipped"]
    assert "check_files failed: KeyError" in told["warning"]
    assert {"cpus", "ports"} <= {one.id for one in found}


def test_equal_findings_of_several_workers_are_told_once():
    fine, other = Finding(id="cpus", what="2 CPUs."), Finding(id="cpus", what="4 CPUs.")
    bad = Finding(id="memory", status="failure", what="None left.", why="x", fix="y")

    found = _examine.merged([[fine], [other, bad], [fine, bad]])

    assert [(one.what, one.workers) for one in found] == [("2 CPUs.", ()), ("None left.", (1, 2))]
    report = Report(findings=found, facts=[], seconds=1)
    assert "None left. (worker 1, 2)" in str(report)
    assert (report.ok, report.findings[0].id) == (False, "memory")


@pytest.mark.parametrize("port", [0, 65534], ids=str)
def test_a_port_that_is_none_is_refused(port, capsys):
    with pytest.raises(InvalidArgumentError, match="three ports"):
        replicax.doctor.examine(port=port)
    assert main(["doctor", f"--port={port}"]) == 2
    assert "three ports" in capsys.readouterr().err
