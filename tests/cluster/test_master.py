"""The master and its control channel, over real sockets: strangers, meetings, failures."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
import struct
import threading
import time

import pytest

from replicax.cluster import Failure, Master, Timeouts, _inspections, look_at_job
from replicax.cluster import _handshake as handshake
from replicax.cluster._addresses import split_address
from replicax.cluster._control import Control
from replicax.cluster._frames import MAX_BODY, pack
from replicax.errors import InvalidArgumentError, StartupError, UnavailableError

TIMEOUTS = Timeouts(start=5, beacon=1.0, collective=5, shutdown=0.5)


class Peer:
    """A worker that speaks the protocol, without jax; its beacons are sent by `hear`."""

    def __init__(self, master, secret, rank, size=3, **hello):
        deadline = time.monotonic() + 5
        self.control = Control.connect(master.address, secret, size, deadline, 1.0)
        self.control.send("hello", rank=rank, world_size=size, host="here", **hello)

    def hear(self, kind, seconds=5.0):
        """The next message of this kind."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.control.send("beacon", waits=0, waiting=False, step=None)
            for message in self.control.receive(min(left, 0.1)):
                if message["kind"] == kind:
                    return message
        raise AssertionError(f"no {kind} within {seconds} s")

    def is_cut_off(self):
        try:
            self.control.receive(0.05)
        except ConnectionError:
            return True
        return False

    def close(self):
        self.control.close()


@pytest.fixture
def master(secret):
    master = Master(world_size=3, secret=secret, timeouts=TIMEOUTS, coordinator_port=None)
    master.start()
    yield master
    master.stop()


@pytest.fixture
def peer(master, secret):
    """`peer(rank)` joins as a worker."""
    peers = []

    def join(rank, **options):
        peers.append(Peer(master, secret, rank, **options))
        return peers[-1]

    yield join
    for each in peers:
        each.close()


@pytest.fixture
def peers(peer):
    joined = [peer(rank) for rank in range(3)]
    for each in joined:
        each.hear("welcome")
    return joined


def raw(master):
    return socket.create_connection(split_address(master.address), timeout=5)


def wait_for(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_closed(connection):
    """Whether the other end closes it soon; what it still sends is read away."""
    connection.settimeout(3)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


# --- looking at a job ------------------------------------------------------------------------


def answering(peer, until):
    """A worker that answers who looks, until that is set."""

    def answer():
        while not until.is_set():
            peer.control.send("beacon", waits=0, waiting=False, step=None)
            for message in peer.control.receive(0.02):
                if message["kind"] == "record":
                    peer.control.send("recorded", look=message["look"], record={"a": "record"})

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_who_looks_gets_the_records_of_those_that_answer(master, peers, secret, monkeypatch):
    monkeypatch.setattr(_inspections, "PATIENCE_S", 1.0)
    over = threading.Event()
    threads = [answering(peers[rank], over) for rank in (0, 2)]
    try:
        look = look_at_job(master.address, secret)
    finally:
        over.set()
        for thread in threads:
            thread.join()

    assert look.records == {0: {"a": "record"}, 2: {"a": "record"}}
    assert look.silent == (1,)
    assert [state["worker"] for state in look.states] == [0, 1, 2]
    assert look.workers == 3


def test_a_job_without_workers_can_be_looked_at(master, secret):
    look = look_at_job(master.address, secret)

    assert (look.records, look.silent, look.failure) == ({}, (), None)


def test_who_looks_must_know_the_secret(master):
    with pytest.raises(UnavailableError, match="no running job with this secret"):
        look_at_job(master.address, b"another secret")
    with pytest.raises(UnavailableError, match="no running job with this secret"):
        look_at_job("127.0.0.1:9", b"another secret", patience=0.2)


def test_a_record_that_makes_no_sense_ends_the_connection(peers):
    peers[0].control.send("recorded", look=1, record="no object")

    wait_for(peers[0].is_cut_off)


# --- strangers -------------------------------------------------------------------------------


class Trap:
    """Leaves a trace where anything unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def strangers(tmp_path):
    """What may come in on the port, by name."""
    trap = pickle.dumps(Trap(str(tmp_path / "trap")))
    yield "random bytes", secrets.token_bytes(500)
    yield "a web browser", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 64
    yield "a pickle", trap.ljust(64, b".")
    yield "a frame", pack("hello", rank=0, world_size=3).ljust(64)
    yield "a megabyte", bytes(1 << 20)
    yield "a wrong proof", bytes(64)


def test_strangers_are_refused_and_disturb_nothing(master, peers, tmp_path, caplog):
    for name, data in strangers(tmp_path):
        with raw(master) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
            assert is_closed(connection), name

    assert not (tmp_path / "trap").exists()
    assert len([r for r in caplog.records if "Refused a connection" in r.message]) == 1
    assert master.first_failure is None
    for each in peers:
        each.hear("ping")


def test_a_worker_with_a_wrong_secret_is_told_so_at_once(master):
    with pytest.raises(StartupError, match="refused the secret"):
        Peer(master, b"another secret", 0)


def test_a_master_with_a_wrong_secret_is_no_master(master):
    def impostor(listener):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(handshake.MAGIC + bytes(32))
            connection.recv(64)
            connection.sendall(bytes(32))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=impostor, args=(listener,))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(StartupError, match="does not know the secret"):
            Control.connect(address, b"the secret", 2, time.monotonic() + 5, 1.0)
        thread.join()


def test_an_answer_cannot_be_sent_back():
    # The proof of the master is none of a worker, over the same two nonces.
    secret, ours, theirs = b"the secret", bytes(32), bytes(range(32))

    labels = {handshake.tag(secret, label, ours, theirs) for label in (b"worker", b"master")}

    assert len(labels) == 2


def test_who_sends_slowly_is_cut_off(master, monkeypatch):
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.3)
    with raw(master) as connection:
        began = time.monotonic()
        connection.sendall(b"x")
        assert is_closed(connection)
        assert time.monotonic() - began < 2


def test_many_idle_strangers_do_not_keep_workers_out(master, peer):
    idle = [raw(master) for _ in range(200)]
    try:
        peer(0).hear("welcome")
    finally:
        for connection in idle:
            connection.close()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack("!I", MAX_BODY + 1), id="too long"),
        pytest.param(struct.pack("!I", 3) + b"xyz", id="no json"),
        pytest.param(pack("dance"), id="unknown"),
        pytest.param(pack("gather", name="x"), id="fields missing"),
        pytest.param(pack("beacon", waits="x", waiting=1), id="wrong type"),
        pytest.param(pack("fail", failure={"kind": "oops"}), id="unknown failure"),
        pytest.param(pack("fail", failure=[]), id="failure of wrong type"),
    ],
)
def test_a_worker_that_talks_nonsense_is_lost(master, peers, data):
    peers[1].control._connection.sendall(data)

    failure = peers[0].hear("abort")["failure"]

    assert (failure["rank"], failure["kind"]) == (1, "lost")


def test_half_a_message_and_an_end_is_a_lost_worker(master, peers):
    peers[1].control._connection.sendall(pack("bye")[:7])
    peers[1].close()

    assert peers[2].hear("abort")["failure"]["rank"] == 1


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        ({"rank": 0}, "is here already"),
        ({"rank": 3}, "0 to 2"),
        ({"rank": 1, "size": 4}, "told of 4"),
    ],
    ids=["twice", "too high", "another size"],
)
def test_a_worker_that_does_not_fit_is_refused_alone(master, peer, hello, why):
    first = peer(0)
    first.hear("welcome")

    assert why in peer(**hello).hear("refused")["why"]
    first.hear("ping")
    assert master.first_failure is None


# --- meetings --------------------------------------------------------------------------------


def bring(peer, data, name="plan", number=0, timeout=5.0):
    peer.control.send("gather", name=name, number=number, data=data, timeout=timeout)


def test_a_meeting_gives_all_what_each_brought(peers):
    for rank, each in enumerate(peers):
        bring(each, {"rank": rank})

    found = [each.hear("gathered")["data"] for each in peers]

    assert found == [[{"rank": 0}, {"rank": 1}, {"rank": 2}]] * 3


def test_a_meeting_holds_a_megabyte_from_each(peers):
    text = "x" * (MAX_BODY - 200)
    for each in peers:
        bring(each, text)

    assert [len(data) for data in peers[0].hear("gathered")["data"]] == [len(text)] * 3


def test_a_meeting_that_is_too_late_names_who_is_missing(master, peers):
    bring(peers[0], 1, timeout=0.2)

    answer = peers[0].hear("ungathered")

    assert answer["missing"] == [1, 2]
    assert master.first_failure is None


def test_who_waits_for_a_worker_that_has_left_is_sent_home(peers):
    bring(peers[0], 1)
    peers[1].control.send("bye")

    assert "[1] had left" in peers[0].hear("ungathered")["why"]
    bring(peers[2], 1, name="later")
    assert "[1] had left" in peers[2].hear("ungathered")["why"]


def test_a_start_without_all_is_a_failure_with_their_addresses(master, peer):
    first = peer(0, addresses=["a:1", "b:2", "c:3"])
    bring(first, None, name="start/programs", timeout=0.2)

    failure = Failure.from_json(first.hear("abort")["failure"])

    assert (failure.rank, failure.kind) == (1, "never came")
    assert "worker 1 at b:2, worker 2 at c:3" in failure.message
    assert isinstance(failure.to_error(), StartupError)


# --- failures --------------------------------------------------------------------------------


def test_the_first_failure_is_told_to_all_and_stays(master, peers):
    first = Failure(rank=7, kind="exception", message="boom", step=4, traceback="T", error="a:B")
    peers[2].control.send("fail", failure=first.to_json())
    told = [each.hear("abort")["failure"] for each in peers]
    peers[1].control.send("fail", failure=first.to_json())
    peers[1].close()
    time.sleep(0.3)

    assert told[0] == told[1] == told[2]
    assert master.first_failure == Failure.from_json(told[0])
    # A worker cannot speak for another one.
    assert (told[0]["rank"], told[0]["host"], told[0]["step"]) == (2, "here", 4)


def test_a_connection_that_ends_is_a_lost_worker(master, peers):
    began = time.monotonic()
    peers[0].close()

    failure = peers[1].hear("abort")["failure"]

    assert (failure["rank"], failure["kind"]) == (0, "lost")
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [(-9, "signal", "SIGKILL"), (3, "exit", "exit code 3"), (0, "exit", "had not left")],
    ids=["signal", "code", "zero"],
)
def test_the_exit_status_says_more_than_the_connection(master, peers, code, kind, words):
    peers[0].close()
    master.worker_exited(0, code)

    failure = peers[1].hear("abort")["failure"]

    assert (failure["kind"], words in failure["message"]) == (kind, True)


def test_a_worker_that_ends_before_it_came_is_known_once_others_come(master, peer):
    master.worker_exited(1, 0)
    assert master.first_failure is None

    failure = peer(0).hear("abort")["failure"]

    assert (failure["rank"], failure["kind"]) == (1, "never came")


def test_a_silent_worker_elsewhere_is_frozen(master, peers):
    began = time.monotonic()
    failure = None
    while failure is None:
        for each in peers[:2]:
            each.control.send("beacon", waits=0, waiting=False, step=None)
        found = [m for m in peers[0].control.receive(0.05) if m["kind"] == "abort"]
        failure = found[0]["failure"] if found else None

    assert (failure["rank"], failure["kind"]) == (2, "frozen")
    assert 0.7 < time.monotonic() - began < 2.5


def test_a_broken_collective_is_blamed_on_who_has_left(master, peers):
    peers[2].control.send("bye")
    peers[2].hear("farewell")
    peers[0].control.send("trouble", text="Gloo: connection closed")

    failure = peers[1].hear("abort")["failure"]

    assert (failure["rank"], failure["kind"]) == (2, "exit")


def test_all_left(master, peers):
    for each in peers[:2]:
        each.control.send("bye")
        each.hear("farewell")
        each.close()
    assert not master.all_left()
    peers[2].control.send("bye")
    peers[2].hear("farewell")
    assert not master.all_left()  # it still takes leave of JAX's coordination service
    peers[2].close()
    deadline = time.monotonic() + 5
    while not master.all_left():
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert master.first_failure is None


def test_report_from_outside(master, peers):
    master.report(1, {"kind": "lost", "message": "its host is gone"})

    assert peers[0].hear("abort")["failure"]["message"] == "its host is gone"


def test_workers_hear_when_the_master_is_stopped(secret):
    master = Master(world_size=1, secret=secret, timeouts=TIMEOUTS, coordinator_port=None)
    master.start()
    only = Peer(master, secret, 0, size=1)
    only.hear("welcome")
    stopping = threading.Thread(target=master.stop)
    stopping.start()

    failure = only.hear("abort")["failure"]

    only.close()
    stopping.join()
    assert (failure["rank"], failure["message"]) == (None, "It was stopped.")


def test_a_port_that_is_taken(secret):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for options in ({"port": port, "coordinator_port": None}, {"coordinator_port": port}):
            master = Master(world_size=1, secret=secret, timeouts=TIMEOUTS, **options)
            with pytest.raises(StartupError, match=str(port)):
                master.start()


def test_a_short_secret():
    with pytest.raises(InvalidArgumentError, match="8 bytes"):
        Master(world_size=1, secret=b"short", timeouts=TIMEOUTS)


def test_a_master_that_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

    with pytest.raises(StartupError, match="cannot reach the master"):
        Control.connect(address, b"the secret", 2, time.monotonic() + 0.3, 1.0)
