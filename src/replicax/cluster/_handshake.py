"""Both ends prove that they know the job's secret, before either reads a message of the other.

    master -> worker   magic (8 bytes), nonce of the master (32)
    worker -> master   nonce of the worker (32), HMAC-SHA256(secret, "worker" + both nonces)
    master -> worker   HMAC-SHA256(secret, "master" + both nonces)

All parts have fixed lengths, so nothing is parsed. The two labels keep an answer from being sent
back as the other one. Who cannot answer learns nothing of the secret, and is disconnected.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
import time

from replicax.errors import InvalidArgumentError, describe

MAGIC = b"RXCTRL1\n"
NONCE_BYTES = 32
TAG_BYTES = 32
MIN_SECRET_BYTES = 8
HANDSHAKE_S = 5.0
"""How long the other end may take to prove itself."""


class HandshakeError(Exception):
    """The other end has not proved that it belongs to the job."""


def check_secret(secret: bytes) -> bytes:
    """The secret, if it is one.

    Raises:
        InvalidArgumentError: It is too short, or not bytes.
    """
    if not isinstance(secret, bytes) or len(secret) < MIN_SECRET_BYTES:
        raise InvalidArgumentError(
            describe(
                f"The secret of the job has to be at least {MIN_SECRET_BYTES} bytes.",
                why="who knows it may end the job.",
                fix="take secrets.token_bytes(32).",
            )
        )
    return secret


def tag(secret: bytes, label: bytes, master_nonce: bytes, worker_nonce: bytes) -> bytes:
    """What the end with this label has to send."""
    return hmac.digest(secret, label + master_nonce + worker_nonce, hashlib.sha256)


async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> None:
    """The master's end.

    Raises:
        HandshakeError: The other end is none of the job, or too slow.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    writer.write(MAGIC + nonce)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            answer = await reader.readexactly(NONCE_BYTES + TAG_BYTES)
    except TimeoutError:
        raise HandshakeError(f"it did not answer within {HANDSHAKE_S:g} s") from None
    except asyncio.IncompleteReadError as error:
        raise HandshakeError(f"it left after {len(error.partial)} bytes") from None
    theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, tag(secret, b"worker", nonce, theirs)):
        raise HandshakeError("it does not know the secret of the job")
    writer.write(tag(secret, b"master", nonce, theirs))


def enter(connection: socket.socket, secret: bytes, timeout_seconds: float = HANDSHAKE_S) -> None:
    """The worker's end.

    Raises:
        HandshakeError: The other end is not the master of the job, or this one was refused.
        OSError: The connection broke, or was too slow.
    """
    deadline = time.monotonic() + timeout_seconds
    greeting = _receive(connection, len(MAGIC) + NONCE_BYTES, deadline)
    if greeting[: len(MAGIC)] != MAGIC:
        raise HandshakeError("what answers there is no master")
    nonce, ours = greeting[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
    connection.sendall(ours + tag(secret, b"worker", nonce, ours))
    try:
        proof = _receive(connection, TAG_BYTES, deadline)
    except ConnectionError as error:
        raise HandshakeError("the master refused the secret of this worker") from error
    if not hmac.compare_digest(proof, tag(secret, b"master", nonce, ours)):
        raise HandshakeError("what answers there does not know the secret of the job")


def _receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    received = b""
    while len(received) < count:
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionAbortedError("the other end closed the connection")
        received += part
    return received
