"""Stands between jax's client and the coordination service, so that its end aborts nobody.

jax's client has a question to the service open at all times. When that question ends without an
answer, as when the service's process is killed, the client aborts this process at once, and no
setting prevents that. So the client is connected to a thread of this process, which hands on all
bytes. When the service is gone, the thread keeps the client's end open and silent; the master
tells of the failure, and this process raises.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

from ._addresses import join_address, split_address
from ._proxies import with_exception

_CHUNK = 1 << 16
_CONNECT_S = 10.0
_HOME = "127.0.0.1"
_NO_PROXY = "no_grpc_proxy"


class Relay:
    """Listens on the loopback for this process, and hands on to the service.

    Args:
        address: `host:port` of the service.

    Attributes:
        address: Where the client connects instead.
        is_cut: Whether the service has ended its connection.
    """

    def __init__(self, address: str) -> None:
        self._service = split_address(address)
        self._listener = socket.create_server((_HOME, 0))
        self.address = join_address(*self._listener.getsockname()[:2])
        self.is_cut = False
        self._lock = threading.Lock()
        self._is_closed = False
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def close(self) -> None:
        """Ends all connections, the client's too, and the threads."""
        with self._lock:
            self._is_closed = True  # Who connects now is turned away.
        for one in self._sockets:
            _end(one)
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _begin(self, run: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=run, args=args, name="replicax-relay", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # It was closed.
                return
            try:
                service = socket.create_connection(self._service, timeout=_CONNECT_S)
            except OSError:  # The client tries again, until its own time is over.
                client.close()
                continue
            service.settimeout(None)
            for one in (client, service):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._is_closed:
                    _end(client)
                    _end(service)
                    return
                self._sockets += [client, service]
                self._begin(self._from_client, client, service)
                self._begin(self._from_service, client, service)

    def _from_client(self, client: socket.socket, service: socket.socket) -> None:
        """What the client says to a service that is gone is lost."""
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK):
                with contextlib.suppress(OSError):
                    service.sendall(data)
        with contextlib.suppress(OSError):
            service.shutdown(socket.SHUT_RDWR)

    def _from_service(self, client: socket.socket, service: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := service.recv(_CHUNK):
                client.sendall(data)
        self.is_cut = True


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextlib.contextmanager
def without_proxy() -> Iterator[None]:
    """While the client connects: no proxy of the environment is to catch the loopback."""
    before = os.environ.get(_NO_PROXY)
    names = {"no_proxy": before or os.environ.get("no_proxy", "")}
    os.environ[_NO_PROXY] = with_exception(_HOME, names)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_PROXY]
        else:
            os.environ[_NO_PROXY] = before
