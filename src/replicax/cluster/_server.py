"""The master's end of the control channel: who may speak, and what was said, as events."""

from __future__ import annotations

import asyncio
from typing import Protocol

from replicax._log import logger

from ._frames import BadFrameError, Decoder, Message
from ._handshake import HANDSHAKE_S, HandshakeError, admit

_log = logger("cluster")

MAX_STRANGERS = 128
"""Connections that may be unproved at once; one more pushes the oldest out."""

_MAX_NOTED_PEERS = 1024
_READ_BYTES = 1 << 16


class Connection:
    """An admitted connection. All methods belong to the server's loop.

    Attributes:
        peer: Address of the other end.
        rank: The worker that speaks here; None before it has said so.
    """

    def __init__(self, writer: asyncio.StreamWriter, peer: str) -> None:
        self._writer = writer
        self.peer = peer
        self.rank: int | None = None

    def send(self, frame: bytes) -> None:
        """Sends without waiting; nothing is sent to a connection that is closing."""
        if not self._writer.is_closing():
            self._writer.write(frame)

    def close(self) -> None:
        """Closes the connection once what was sent is out."""
        self._writer.close()


class Listener(Protocol):
    """What the server tells of."""

    def received(self, connection: Connection, message: Message) -> None:
        """A message has come; the first one of a connection is to set its rank.

        Raises:
            BadFrameError: The message makes no sense: the connection is closed.
        """

    def closed(self, connection: Connection) -> None:
        """A connection with a rank has ended, in whatever way."""


class ControlServer:
    """Admits workers by the secret of the job, and hands on what they send."""

    def __init__(self, secret: bytes, listener: Listener) -> None:
        self._secret = secret
        self._listener = listener
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._noted: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Starts to listen, and returns the port.

        Raises:
            OSError: The address cannot be bound.
        """
        self._server = await asyncio.start_server(self._accept, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stops to listen and closes all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            next(iter(self._strangers)).transport.abort()
        self._strangers[writer] = None
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _peer(writer)
        try:
            try:
                await admit(reader, writer, self._secret)
            finally:
                self._strangers.pop(writer, None)
            await self._read(reader, Connection(writer, peer))
        except (HandshakeError, BadFrameError) as error:
            self._refuse(peer, error)
        except OSError as error:
            _log.debug("The connection from %s broke: %s", peer, error)
        except Exception:  # noqa: BLE001 - one connection must not end the server
            _log.exception("The connection from %s is given up.", peer)
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, connection: Connection) -> None:
        decoder = Decoder()
        try:
            while True:
                patience = HANDSHAKE_S if connection.rank is None else None
                try:
                    async with asyncio.timeout(patience):
                        data = await reader.read(_READ_BYTES)
                except TimeoutError:
                    raise BadFrameError("it did not say which worker it is") from None
                if not data:
                    return
                for message in decoder.feed(data):
                    self._listener.received(connection, message)
        finally:
            if connection.rank is not None:
                self._listener.closed(connection)

    def _refuse(self, peer: str, error: Exception) -> None:
        """Logs a refusal, once for each address."""
        host = peer.rpartition(":")[0]
        if host not in self._noted and len(self._noted) < _MAX_NOTED_PEERS:
            self._noted.add(host)
            _log.warning(
                "Refused a connection to the control channel from %s: %s. "
                "Others from there are refused without a word.",
                peer,
                error,
            )


def _peer(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if name else "unknown:0"
