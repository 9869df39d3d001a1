"""Several hosts: here all of them are threads of one process, over real connections."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import socket
import threading
import time

import pytest

import replicax as rx
from replicax import errors
from replicax.cluster import launch
from replicax.cluster._frames import pack
from replicax.cluster._handshake import enter
from replicax.cluster._launcher._agent import Agent
from replicax.cluster._launcher._events import Event
from replicax.cluster._launcher._launch import secret_file
from replicax.cluster._launcher._ports import free_ports

pytestmark = pytest.mark.slow  # real processes on both sides, and waits for who does not come
SECRET = b"the secret of the job"
QUICK = rx.Timeouts(start=2, shutdown=2)


@pytest.fixture
def job(options):
    """`job(source, nnodes, workers, ...)`: the options of each host."""

    def make(source, nnodes=2, workers=1, **fields):
        (port,) = free_ports(1)
        while port > 65000:
            (port,) = free_ports(1)
        first = options(
            source, nnodes=nnodes, workers=workers, secret=SECRET, master_port=port, **fields
        )
        return [dataclasses.replace(first, node_rank=node) for node in range(nnodes)]

    return make


@contextlib.contextmanager
def started(*each):
    """Launches in threads; gives the queue in which the codes or errors of each arrive."""
    ends = queue.Queue()

    def run(options):
        try:
            ends.put((options.node_rank, launch(options)))
        except errors.ReplicaxError as error:
            ends.put((options.node_rank, error))

    threads = [threading.Thread(target=run, args=(options,)) for options in each]
    for thread in threads:
        thread.start()
    try:
        yield ends
    finally:
        for thread in threads:
            thread.join(30)


def joined(options):
    """A connection of a host that knows the secret."""
    deadline = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", options.master_port))
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    enter(connection, options.secret)
    return connection


def test_ranks_go_through_the_hosts(job, capfd):
    source = """
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        workers = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
        print(*(os.environ[name] for name in names), len(set(workers)))
    """
    first, second = job(source)
    with started(first, dataclasses.replace(second, workers=2)) as ends:
        codes = dict([ends.get(timeout=30), ends.get(timeout=30)])

    assert codes == {0: 0, 1: 0}
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == [
        "[0] 0 0 3 1 0 3",
        "[1] 1 0 3 2 1 3",
        "[2] 2 1 3 2 1 3",
    ]
    assert err == ""


def test_a_failure_on_one_host_ends_all_and_is_told_by_the_first(job, capfd):
    source = """
        if rank == 1 and os.environ["REPLICAX_RESTART"] == "1":
            raise SystemExit("boom")
        if os.environ["REPLICAX_RESTART"] == "0":
            os.kill(os.getpid(), signal.SIGKILL) if rank == 0 else time.sleep(50)
        time.sleep(50)
    """
    with started(*job(source, max_restarts=1)) as ends:
        codes = dict([ends.get(timeout=40), ends.get(timeout=40)])

    assert codes == {0: 1, 1: 1}
    err = capfd.readouterr().err
    first, second = err.split("starting again, 1 of 1")
    assert "first failure: worker 0 of 2" in first
    assert "worker 1: SIGTERM" in first
    assert "first failure: worker 1 of 2" in second
    assert "127.0.0.1" in second
    assert "│   boom" in second


def test_who_does_not_know_the_secret_is_refused(job):
    first, second = job("pass", timeouts=QUICK)
    with started(first, dataclasses.replace(second, secret=b"another secret")) as ends:
        found = dict([ends.get(timeout=30), ends.get(timeout=30)])

    assert isinstance(found[0], errors.StartupError)
    assert "1 of 2 nodes did not come within 2 s" in str(found[0])
    assert isinstance(found[1], errors.StartupError)
    assert "secret" in str(found[1])
    assert SECRET.decode() not in f"{found}"


def test_a_job_that_may_be_smaller_starts_with_those_who_came(job, capfd):
    source = "print(os.environ['WORLD_SIZE'])"
    first, second, _ = job(source, nnodes=3, min_nodes=2, last_call=1.0)
    with started(first, second) as ends:
        codes = dict([ends.get(timeout=30), ends.get(timeout=30)])

    assert codes == {0: 0, 1: 0}
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] 2", "[1] 2"]
    assert "node 1 takes part from the next start on" in err


def test_too_few_for_a_job_that_may_be_smaller(job):
    (first, *_) = job("pass", nnodes=3, min_nodes=2, last_call=0.1, timeouts=QUICK)

    with pytest.raises(errors.StartupError, match=r"2 of 3 nodes did not come .* at least 2 are"):
        launch(first)


def test_a_node_rank_that_is_there_already_is_refused(job):
    timeouts = dataclasses.replace(QUICK, start=5)
    first, second = job("time.sleep(1)", nnodes=3, timeouts=timeouts)[:2]
    with started(first, second, second) as ends:
        found = [ends.get(timeout=30) for _ in range(3)]

    refused = [str(end) for node, end in found if node == 1 and isinstance(end, Exception)]
    assert any("a node 1 already" in text for text in refused)


@pytest.mark.parametrize("node", [0, 1], ids=["the first host", "another host"])
def test_a_signal_ends_the_wait_for_the_others(job, node, capfd):
    options = job("pass")[node]
    sender = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sender.start()
        assert launch(options) == 130
    finally:
        sender.join()
        signal.signal(signal.SIGINT, before)
    assert "ended by SIGINT" in capfd.readouterr().err


def test_nobody_answers(job):
    (_, second) = job("pass", timeouts=dataclasses.replace(QUICK, start=0.5))

    with pytest.raises(errors.StartupError, match="nobody answered"):
        launch(second)


def test_a_host_that_is_lost_ends_the_job(job, capfd):
    first, second = job("time.sleep(50)", timeouts=dataclasses.replace(QUICK, start=30, beacon=0.5))
    with started(first) as ends:
        connection = joined(second)
        with connection:
            hello = pack("hello", node=1, workers=1, host="h", addresses=["h:1"])
            connection.sendall(hello)
            time.sleep(0.5)  # then it falls silent, without a word
            node, code = ends.get(timeout=30)

    assert (node, code) == (0, 1)
    err = capfd.readouterr().err
    assert "lost: Its node 1 is lost: nothing was heard for 1.5 s." in err
    assert "worker 0: SIGTERM" in err


def test_garbage_on_the_port_disturbs_nothing(job, capfd):
    first, second = job("print('fine')")
    with started(first) as ends:
        for data in (b"GET / HTTP/1.1\r\n\r\n" * 10, b"\x00" * 4096, b"x"):
            with joined(first) as proved, contextlib.suppress(OSError):
                proved.sendall(data)
            with socket.create_connection(("127.0.0.1", first.master_port)) as connection:
                connection.sendall(data)
        with started(second) as others:
            assert others.get(timeout=30) == (1, 0)
        assert ends.get(timeout=30) == (0, 0)
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] fine", "[1] fine"]


def test_h3_a_signal_to_some_launchers_reaches_the_workers_of_all_once(job, capfd):
    source = """
        def leave(*_):
            time.sleep(1)
            sys.exit(75)

        signal.signal(signal.SIGTERM, leave)
        print("ready")
        time.sleep(50)
    """
    first, second, third = job(source, nnodes=3)
    queues = [queue.SimpleQueue(), queue.SimpleQueue()]
    with started(first) as ends, secret_file(SECRET) as path:
        agents = [
            threading.Thread(target=Agent(options, events, SECRET, path).run)
            for options, events in zip((second, third), queues, strict=True)
        ]
        for agent in agents:
            agent.start()
        out = ""
        while out.count("ready") < 3:
            out += capfd.readouterr().out
            time.sleep(0.02)
        for events in queues:  # Slurm sends it to all of them
            events.put(Event("signal", value=signal.SIGTERM))
        assert ends.get(timeout=30) == (0, 75)
        for agent in agents:
            agent.join(10)
    assert "SIGTERM: handed on to the workers" in capfd.readouterr().err
