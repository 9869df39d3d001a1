"""A connection between the launchers of two hosts: messages both ways, and signs of life."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from replicax.cluster._frames import BadFrameError, Decoder, Message, pack

PING_S = 0.5
BEACONS = 3
"""A host may be silent for so many times as long as a worker: a lost host ends the job for good."""
_CHUNK = 1 << 16


class Wire:
    """A proved connection. It counts as lost when nothing came for some time.

    Args:
        connection: The connection, after the handshake.
        beacon_seconds: The time-out of beacons; see `BEACONS`.
        on_message: Gets each message, in a thread of the wire.
        on_lost: Told once why the connection has ended, unless `close` ended it.
    """

    def __init__(
        self,
        connection: socket.socket,
        beacon_seconds: float,
        *,
        on_message: Callable[[Message], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._silence = BEACONS * beacon_seconds
        self._on_message, self._on_lost = on_message, on_lost
        self._sending = threading.Lock()
        self._closed = threading.Event()
        connection.settimeout(self._silence)
        self._threads = [
            threading.Thread(target=run, name=f"replicax-wire-{name}", daemon=True)
            for name, run in (("read", self._read), ("ping", self._ping))
        ]

    def start(self) -> None:
        """Starts to read, and to give signs of life."""
        for thread in self._threads:
            thread.start()

    def send(self, kind: str, **fields: Any) -> None:
        """Sends one message; nothing happens once the connection is lost."""
        frame = pack(kind, **fields)
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(frame)

    def close(self) -> None:
        """Ends the connection. Not to be called from `on_message` or `on_lost`."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._connection.close()

    def _ping(self) -> None:
        while not self._closed.wait(PING_S):
            self.send("ping")

    def _read(self) -> None:
        decoder = Decoder()
        why = "the other end closed the connection"
        try:
            while data := self._connection.recv(_CHUNK):
                for message in decoder.feed(data):
                    if message["kind"] != "ping":
                        self._on_message(message)
        except TimeoutError:
            why = f"nothing was heard for {self._silence:g} s"
        except (OSError, BadFrameError) as error:
            why = str(error)
        if not self._closed.is_set():
            self._closed.set()
            self._on_lost(why)
