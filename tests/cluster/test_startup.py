"""What the workers compare before they start, with real processes."""

from __future__ import annotations

import pytest

from replicax.cluster import Timeouts, _first_collective, _startup
from replicax.errors import StartupError


def raised(running, *ranks):
    running.until_ended(*ranks)
    assert [running.workers[rank].code for rank in ranks] == [1] * len(ranks)
    return [running.workers[rank].event("raised") for rank in ranks]


def test_workers_with_other_numbers_of_devices(job):
    for found in raised(job(own={1: {"DEVICES": "2"}}), 0, 1):
        assert "StartupError" in found["classes"]
        assert "worker  platform  devices  of all  process" in found["text"]
        assert "     1  cpu             2" in found["text"]


@pytest.mark.slow
def test_workers_with_other_settings(job):
    for found in raised(job(own={1: {"X64": "1"}}), 0, 1):
        assert "StartupError" in found["classes"]
        assert "jax_enable_x64" in found["text"]


@pytest.mark.slow
def test_devices_that_were_used_before(job):
    (found,) = raised(job(ranks=(0,), EARLY="1"), 0)

    assert "DevicesStartedError" in found["classes"]


@pytest.mark.slow
def test_g2_devices_that_do_not_compute_together_are_told_in_time(job):
    timeouts = Timeouts(start=4, shutdown=3)
    for found in raised(job("no collective", timeouts=timeouts), 0, 1):
        assert "StartupError" in found["classes"]
        assert "     1  did not end within 4 s" in found["text"]


def test_the_first_collective_is_looked_at():
    calls = []

    class Worker:
        def gather(self, name, data, *, timeout):
            calls.append((name, timeout))
            return [data, "failed: no route"]

        def check(self): ...

    with pytest.raises(StartupError) as caught:
        _first_collective.prove(Worker(), 20.0)
    assert "     0  proved" in str(caught.value)
    assert "     1  failed: no route" in str(caught.value)
    assert calls == [("start/compiled", 20.0), ("start/collective", 20.0)]


def test_equal_workers_pass():
    _startup.compare([_startup.facts(["a:1", "b:1"])] * 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax", "0.0.1"),
        ("replicax", "2"),
        ("program", "-m other"),
        ("host order", "b, a"),
        ("jax_enable_x64", "maybe"),
    ],
)
def test_what_differs_is_in_the_table(name, value):
    mine = _startup.facts(["a:1", "b:1"])

    with pytest.raises(StartupError) as caught:
        _startup.compare([mine, {**mine, name: value}])

    first, head, one, two, *_ = caught.value.message.splitlines()
    assert name in first
    assert head.split()[1:] == name.split()
    assert mine[name] in one
    assert value in two


@pytest.mark.parametrize(
    "change",
    [{"devices": 2}, {"of all": 1}, {"process": 0}, {"platform": "gpu"}],
    ids=["number", "alone", "order", "platform"],
)
def test_unequal_devices(change):
    each = {"platform": "cpu", "devices": 1, "of all": 2}
    found = [{**each, "process": 0}, {**each, "process": 1}]
    _startup.compare_devices(found)
    found[1] |= change

    with pytest.raises(StartupError, match="equal devices"):
        _startup.compare_devices(found)
