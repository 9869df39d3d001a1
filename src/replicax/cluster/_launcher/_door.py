"""Who comes: the other hosts that have been let in, and the connections to them."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from replicax.cluster._addresses import join_address
from replicax.cluster._frames import pack
from replicax.errors import StartupError, describe

from ._admission import NodePlace, family_of, first_message, place_of, prove
from ._events import Event, Events
from ._options import LaunchOptions
from ._wire import Wire


class Door:
    """Lets the launchers of other hosts in, at any time.

    Args:
        options: What the launch was told.
        events: Gets what they say, and that one is lost.
        secret: What they have to prove.

    Raises:
        StartupError: The port cannot be bound.
    """

    def __init__(self, options: LaunchOptions, events: Events, secret: bytes) -> None:
        self._options, self._events, self._secret = options, events, secret
        self._lock = threading.Lock()
        self._hellos: dict[int, tuple[Wire, NodePlace]] = {}
        address = (options.master_addr.strip("[]"), options.master_port)
        try:
            family = family_of(*address, options.timeouts.start)
            self._listener = socket.create_server(address, family=family)
        except OSError as error:
            what = f"The launcher cannot listen on {join_address(*address)}: {error}."
            fix = "check that --master-addr is an address of this host, and that the port is free."
            raise StartupError(describe(what, fix=fix)) from error
        self._accepting = threading.Thread(target=self._accept, name="replicax-nodes", daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(
                target=self._admit, args=(connection,), name="replicax-admit", daemon=True
            ).start()

    def _admit(self, connection: socket.socket) -> None:
        """Lets a launcher in that knows the secret; everybody else is cut off unread."""
        try:
            prove(connection, self._secret)
            hello = first_message(connection)
            place = place_of(hello)
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return
        node = place.node
        wire = Wire(
            connection,
            self._options.timeouts.beacon,
            on_message=lambda message: self._events.put(Event("node", node, fields=message)),
            on_lost=lambda why: self._events.put(Event("lost", node, fields={"why": why})),
        )
        with self._lock:
            refusal = self._refusal(place)
            if refusal is None:
                self._hellos[node] = (wire, place)
        if refusal is not None:
            with contextlib.suppress(OSError):
                connection.sendall(pack("refused", why=refusal))
            connection.close()
            return
        wire.send("welcome")
        wire.start()

    def _refusal(self, place: NodePlace) -> str | None:
        if not 0 < place.node < self._options.nnodes:
            return f"the node ranks of the others are 1 to {self._options.nnodes - 1}."
        if place.node in self._hellos:
            return f"there is a node {place.node} already, {self._hellos[place.node][1].host}."
        return None

    def places(self) -> list[NodePlace]:
        """The hosts that are here, by number."""
        with self._lock:
            return [self._hellos[node][1] for node in sorted(self._hellos)]

    def send(self, node: int, kind: str, **fields: Any) -> None:
        """Sends a message to a host; nothing happens if it is not here."""
        with self._lock:
            wire = self._hellos[node][0] if node in self._hellos else None
        if wire is not None:
            wire.send(kind, **fields)

    def drop(self, node: int) -> None:
        """Ends the connection to a host: another one may come with its number."""
        with self._lock:
            wire, _ = self._hellos.pop(node, (None, None))
        if wire is not None:
            wire.close()

    def close(self, code: int) -> None:
        """Tells all how the job has ended, and lets nobody in any more."""
        for place in self.places():
            self.send(place.node, "done", code=code)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for place in self.places():
            self.drop(place.node)
