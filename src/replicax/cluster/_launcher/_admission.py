"""How the launcher of another host is let in: the secret first, then one message."""

from __future__ import annotations

import dataclasses
import hmac
import secrets
import socket
import time

from replicax.cluster._frames import Decoder, Message
from replicax.cluster._handshake import HANDSHAKE_S, MAGIC, NONCE_BYTES, TAG_BYTES, tag

_POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class NodePlace:
    """A host and its workers.

    Attributes:
        node: Its number.
        workers: How many workers it has.
        host: Its address.
        addresses: An address for each worker, free for the program.
    """

    node: int
    workers: int
    host: str
    addresses: list[str]


def family_of(host: str, port: int, seconds: float) -> int:
    """The family of a host's address; the name of a new pod takes a while to be known."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        except socket.gaierror:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)


def prove(connection: socket.socket, secret: bytes) -> None:
    """The handshake's end of the host of rank 0.

    Raises:
        OSError: The other end left, is too slow, or does not know the secret.
    """
    connection.settimeout(HANDSHAKE_S)
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(MAGIC + nonce)
    answer = b""
    while len(answer) < NONCE_BYTES + TAG_BYTES:
        part = connection.recv(NONCE_BYTES + TAG_BYTES - len(answer))
        if not part:
            raise ConnectionAbortedError("it left")
        answer += part
    theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, tag(secret, b"worker", nonce, theirs)):
        raise ConnectionRefusedError("it does not know the secret")
    connection.sendall(tag(secret, b"master", nonce, theirs))


def first_message(connection: socket.socket) -> Message:
    """The first message on a proved connection; nothing is sent behind it before the answer.

    Raises:
        OSError: None came in time.
        BadFrameError: It is no message.
    """
    decoder = Decoder()
    while data := connection.recv(1):
        if found := decoder.feed(data):
            return found[0]
    raise ConnectionAbortedError("it left")


def place_of(hello: Message) -> NodePlace:
    """The host in a `hello`."""
    addresses = [str(address) for address in hello["addresses"]]
    workers = int(hello["workers"])
    if hello["kind"] != "hello" or len(addresses) != workers or workers < 1:
        raise ValueError("no hello")
    return NodePlace(int(hello["node"]), workers, str(hello["host"]), addresses)
