"""A worker's end of the control channel."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import Any

from replicax.errors import StartupError, describe

from ._addresses import split_address
from ._frames import BadFrameError, Decoder, Message, pack
from ._gathers import result_limit
from ._handshake import HANDSHAKE_S, HandshakeError, enter

_RETRY_S = 0.1
_READ_BYTES = 1 << 16


class Control:
    """The connection to the master. `send` may be called from any thread, `receive` from one.

    Args:
        connection: A connection that both ends have proved.
        world_size: Number of workers.
        send_seconds: How long the master may take to take a message.
    """

    def __init__(self, connection: socket.socket, world_size: int, send_seconds: float) -> None:
        connection.settimeout(send_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._decoder = Decoder(limit=result_limit(world_size))
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    @classmethod
    def connect(
        cls, address: str, secret: bytes, world_size: int, deadline: float, send_seconds: float
    ) -> Control:
        """Connects, and tries again until the master is there.

        Raises:
            StartupError: It was not there in time, or does not belong to this job.
        """
        began = time.monotonic()
        problem: Exception | None = None
        while (left := deadline - time.monotonic()) > 0:
            try:
                connection = socket.create_connection(split_address(address), timeout=left)
                try:
                    enter(connection, secret, min(left, HANDSHAKE_S))
                except BaseException:
                    connection.close()
                    raise
                return cls(connection, world_size, send_seconds)
            except HandshakeError as error:
                problem = error
                break
            except OSError as error:
                problem = error
                time.sleep(_RETRY_S)
        waited = time.monotonic() - began
        raise StartupError(
            describe(
                f"This worker cannot reach the master of the job at {address}: {problem}.",
                why=f"it tried for {waited:.1f} s.",
                fix="look whether the master runs, whether a firewall is between, and whether "
                "both have the same secret.",
            )
        ) from problem

    def send(self, kind: str, **fields: Any) -> bool:
        """Sends a message; False where the master is gone, which `receive` tells too.

        Raises:
            InvalidArgumentError: The fields are not JSON, or too long.
        """
        frame = pack(kind, **fields)
        with self._lock:
            try:
                self._connection.sendall(frame)
            except OSError:
                return False
        return True

    def receive(self, timeout_seconds: float) -> list[Message]:
        """What came within the time; perhaps nothing.

        Raises:
            ConnectionError: The connection has ended, or makes no sense.
        """
        if not self._poll.poll(max(timeout_seconds, 0.0) * 1000):
            return []
        try:
            data = self._connection.recv(_READ_BYTES)
            if not data:
                raise ConnectionAbortedError("the master closed the connection")
            return self._decoder.feed(data)
        except (BadFrameError, TimeoutError) as error:
            raise ConnectionAbortedError(f"the master sent nonsense: {error}") from error
        except OSError as error:
            raise ConnectionAbortedError(str(error)) from error

    def fileno(self) -> int:
        """The number of the socket."""
        return self._connection.fileno()

    def close(self) -> None:
        """Closes this process's end."""
        with contextlib.suppress(OSError):
            self._connection.close()
