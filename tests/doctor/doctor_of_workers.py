"""What the workers of a job do in these tests."""

from __future__ import annotations

import os

import jax

from replicax.doctor import _machine, _network
from replicax.doctor._workers import Meeting


def with_other_devices():
    """Worker 0 has one device, worker 1 has two."""
    count = 1 + int(os.environ["RANK"])
    jax.config.update("jax_num_cpu_devices", count)
    device = {"id": 0, "kind": "cpu"}
    facts = {
        "backend": {"platform": "cpu", "devices": [device] * count},
        "versions": _machine.versions(),
        "settings": {},
        "hardware": _machine.hardware(),
        "cpus": _machine.cpus(),
        "limits": _machine.limits(),
        "own_name": _network.own_name(),
    }
    meeting = Meeting(facts)
    meeting.hold(None, is_quick=False)
    found = {one.id: one for one in meeting.findings()}
    told = {"clocks": found["clocks"].status, "workers": found["workers"].status}
    told["differ"] = list(found["workers-differ"].table.columns)
    return told, found["workers"].what
