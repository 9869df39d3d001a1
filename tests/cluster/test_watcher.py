"""The thread that listens, with a master that behaves badly at the other end of a socket."""

from __future__ import annotations

import queue
import socket
import time

import pytest

from replicax.cluster import Failure, Timeouts
from replicax.cluster._control import Control
from replicax.cluster._frames import pack
from replicax.cluster._watcher import Watcher

TIMEOUTS = Timeouts(beacon=0.6, collective=5)


class Recorder:
    """Keeps what the watcher tells."""

    def __init__(self):
        self.beacons, self.heard_kinds, self.escalations = [], [], []
        self.aborts = queue.Queue()

    def beacon(self):
        self.beacons.append(time.monotonic())

    def heard(self, message):
        self.heard_kinds.append(message["kind"])

    def abort(self, failure):
        self.aborts.put(failure)

    def escalate(self, seconds):
        self.escalations.append(seconds)


@pytest.fixture
def ends():
    """The recorder of a worker, and its master's end of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    control = Control(ours, 2, 1.0)
    recorder = Recorder()
    watcher = Watcher(control, recorder, TIMEOUTS)
    watcher.start()
    yield recorder, theirs
    watcher.stop()
    control.close()
    theirs.close()


def test_a_worker_gives_signs_of_life(ends):
    recorder, master = ends
    for _ in range(5):
        master.sendall(pack("ping"))
        time.sleep(0.2)

    gaps = [b - a for a, b in zip(recorder.beacons, recorder.beacons[1:], strict=False)]
    assert 3 <= len(gaps) <= 6
    assert all(0.2 < gap < 0.6 for gap in gaps)
    assert recorder.aborts.empty()
    assert recorder.heard_kinds == ["ping"] * 5


def test_a_silent_master_is_frozen(ends):
    recorder, master = ends
    master.sendall(pack("welcome", identity={"pid": 1, "host": "elsewhere"}))

    failure = recorder.aborts.get(timeout=2)

    assert (failure.rank, failure.kind) == (None, "frozen")


def test_a_master_that_ends_is_lost(ends):
    recorder, master = ends
    master.close()

    failure = recorder.aborts.get(timeout=0.5)
    time.sleep(0.6)

    assert (failure.rank, failure.kind) == (None, "lost")
    assert recorder.escalations
    assert recorder.aborts.empty()


@pytest.mark.parametrize(
    "data", [b"\xff" * 8, b"\0\0\0\x08not json"], ids=["a huge length", "no json"]
)
def test_a_master_that_talks_nonsense_is_lost(ends, data):
    recorder, master = ends
    master.sendall(data)

    assert recorder.aborts.get(timeout=2).kind == "lost"


def test_a_failure_is_told_once(ends):
    recorder, master = ends
    first = Failure(rank=1, kind="exception", message="boom", step=3)
    for failure in (first, Failure(rank=0, kind="lost", message="later")):
        master.sendall(pack("abort", failure=failure.to_json()))

    assert recorder.aborts.get(timeout=2) == first
    time.sleep(0.3)
    assert recorder.aborts.empty()


def test_a_failure_that_cannot_be_read_is_one_all_the_same(ends):
    recorder, master = ends
    master.sendall(pack("abort", failure="?"))

    assert recorder.aborts.get(timeout=2).kind == "lost"
