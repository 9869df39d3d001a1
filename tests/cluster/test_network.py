"""A worker whose network is cut: no connection ends, nothing arrives any more.

Worker 1 lives in a network namespace of its own, behind a virtual cable.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from replicax.cluster import Master, Timeouts

BEACON_S = 1.5
IP = shutil.which("ip") or "ip"
HERE, THERE = "10.77.31.1", "10.77.31.2"


class Cable:
    """A virtual cable from this host to a namespace."""

    def __init__(self):
        self.space = f"rx-{os.getpid()}"
        self.near, self.far = f"rxn{os.getpid()}", f"rxf{os.getpid()}"

    def plug(self):
        ip("netns", "add", self.space)
        ip("link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", self.space)
        ip("addr", "add", f"{HERE}/24", "dev", self.near)
        ip("link", "set", self.near, "up")
        ip("-n", self.space, "addr", "add", f"{THERE}/24", "dev", self.far)
        ip("-n", self.space, "link", "set", self.far, "up")
        ip("-n", self.space, "link", "set", "lo", "up")

    def cut(self):
        ip("-n", self.space, "link", "set", self.far, "down")

    def take_away(self):
        for command in (["link", "del", self.near], ["netns", "del", self.space]):
            subprocess.run([IP, *command], check=False, capture_output=True)


def ip(*arguments):
    subprocess.run([IP, *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def cable():
    if IP == "ip":
        pytest.skip("there is no `ip` to make a network namespace with")
    cable = Cable()
    try:
        cable.plug()
    except subprocess.CalledProcessError as error:
        cable.take_away()
        pytest.skip(f"this user or kernel makes no network namespace: {error.stderr}")
    yield cable
    cable.take_away()


@pytest.mark.slow
def test_a_worker_that_is_cut_off(job, cable, secret):
    timeouts = Timeouts(start=30, beacon=BEACON_S, shutdown=3)
    master = Master(world_size=2, secret=secret, host=HERE, timeouts=timeouts)
    master.start()
    own = {0: {"ADDRESS": HERE}, 1: {"ADDRESS": THERE, "NETWORK": cable.space}}
    running = job(timeouts=timeouts, master=master, own=own, STEPS="1000000")
    running.until(lambda: all(worker.has("stepping") for worker in running.workers))
    began = running.now()
    cable.cut()
    running.until_ended(0, 1)

    for rank, culprit in ((0, 1), (1, None)):
        raised = running.workers[rank].event("raised")
        assert (raised["kind"], raised["task"]) == ("frozen", culprit)
        assert raised["time"] - began < BEACON_S + 1
        assert running.workers[rank].code == 1
