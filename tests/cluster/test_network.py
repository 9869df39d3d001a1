"""A worker whose network is cut: no connection ends, nothing arrives any more.

Worker 1 lives in a network namespace of its own, behind two virtual cables: one to the master, and
one to the other worker.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from replicax.cluster import Master, Timeouts

BEACON_S = 1.5
IP = shutil.which("ip") or "ip"


class Cable:
    """A virtual cable from this host to a namespace."""

    def __init__(self, space, number):
        self.space = space
        self.here, self.there = f"10.77.{number}.1", f"10.77.{number}.2"
        self.near, self.far = f"rxn{number}-{os.getpid()}", f"rxf{number}-{os.getpid()}"

    def plug(self):
        ip("link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", self.space)
        ip("addr", "add", f"{self.here}/24", "dev", self.near)
        ip("link", "set", self.near, "up")
        ip("-n", self.space, "addr", "add", f"{self.there}/24", "dev", self.far)
        ip("-n", self.space, "link", "set", self.far, "up")

    def cut(self):
        ip("-n", self.space, "link", "set", self.far, "down")


def ip(*arguments):
    subprocess.run([IP, *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def cables():
    """The cable to the master, and the one to the other worker."""
    if IP == "ip":
        pytest.skip("there is no `ip` to make a network namespace with")
    space = f"rx-{os.getpid()}"
    first = 2 * (os.getpid() % 120)  # several tests may run at a time
    both = [Cable(space, number) for number in (first, first + 1)]
    try:
        ip("netns", "add", space)
        ip("-n", space, "link", "set", "lo", "up")
        for cable in both:
            cable.plug()
        yield both
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this user or kernel makes no network namespace: {error.stderr}")
    finally:
        for command in (*(["link", "del", cable.near] for cable in both), ["netns", "del", space]):
            subprocess.run([IP, *command], check=False, capture_output=True)


@pytest.fixture
def train(job, cables, secret):
    """`train(**options)` starts two workers, and waits until both are at work."""
    control, data = cables

    def start(*, size="2000", **options):
        timeouts = Timeouts(start=30, beacon=BEACON_S, shutdown=3, **options)
        master = Master(world_size=2, secret=secret, host=control.here, timeouts=timeouts)
        master.start()
        own = {0: {"ADDRESS": data.here}, 1: {"ADDRESS": data.there, "NETWORK": data.space}}
        running = job(timeouts=timeouts, master=master, own=own, STEPS="1000000", SIZE=size)
        running.until(lambda: all(worker.has("stepping") for worker in running.workers))
        return running

    return start


def check_frozen(running, began):
    """Each worker takes what it cannot hear for frozen, and ends."""
    running.until_ended(0, 1)
    for rank, culprit in ((0, 1), (1, None)):
        raised = running.workers[rank].event("raised")
        assert (raised["kind"], raised["task"]) == ("frozen", culprit)
        assert raised["time"] - began < BEACON_S + 1
        assert running.workers[rank].code == 1


@pytest.mark.slow
@pytest.mark.parametrize("size", ["2000", "1000000"], ids=["small", "in the middle of 4 MB"])
def test_a_worker_that_is_cut_off(train, cables, size):
    running = train(size=size)
    began = running.now()
    for cable in cables:
        cable.cut()

    check_frozen(running, began)


@pytest.mark.slow
def test_a_worker_that_cannot_reach_the_master(train, cables):
    """Though it goes on to compute with the other worker."""
    running = train()
    began = running.now()
    cables[0].cut()

    check_frozen(running, began)


@pytest.mark.slow
def test_workers_that_reach_the_master_but_not_each_other(train, cables):
    """Nobody has failed; the collective does not end."""
    running = train(collective=3)
    cables[1].cut()
    running.until_ended(0, 1)

    for worker in running.workers:
        raised = worker.event("raised")
        assert "CollectiveTimeoutError" in raised["classes"]
        assert raised["text"].count("waiting") >= 2
        assert worker.code == 1
