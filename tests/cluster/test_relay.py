"""The thread between jax's client and the coordination service."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import pytest

from replicax.cluster._addresses import join_address, split_address
from replicax.cluster._proxies import proxy_for
from replicax.cluster._relay import Relay, without_proxy

PATIENCE_S = 20


@pytest.fixture
def ends():
    """A relay, its client's end, and the service's end of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = Relay(join_address(*listener.getsockname()))
        with socket.create_connection(split_address(relay.address), PATIENCE_S) as client:
            service, _ = listener.accept()
            with service:
                service.settimeout(PATIENCE_S)
                yield relay, client, service
        relay.close()


def test_bytes_go_both_ways(ends):
    _, client, service = ends
    client.sendall(b"question")
    assert service.recv(100) == b"question"
    service.sendall(b"answer")
    assert client.recv(100) == b"answer"


def test_the_end_of_the_service_is_not_seen_by_the_client(ends):
    relay, client, service = ends
    service.close()
    deadline = time.monotonic() + PATIENCE_S
    while not relay.is_cut:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    client.sendall(b"question")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(100)


def test_the_end_of_the_client_is_seen_by_the_service(ends):
    _, client, service = ends
    client.close()

    assert service.recv(100) == b""


def test_closing_ends_the_client(ends):
    relay, client, _ = ends
    relay.close()

    with contextlib.suppress(ConnectionResetError):  # It had not been accepted yet.
        assert client.recv(100) == b""


@pytest.mark.parametrize("excepted", [None, "node1"])
def test_no_proxy_catches_the_client(monkeypatch, excepted):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "node0")
    if excepted is not None:
        monkeypatch.setenv("no_grpc_proxy", excepted)
    before = dict(os.environ)

    with without_proxy():
        assert proxy_for("127.0.0.1", os.environ) is None

    assert dict(os.environ) == before
