"""Messages on a connection: JSON objects, each behind its length.

A frame is four bytes with the length of its body, most significant first, and the body: a JSON
object in UTF-8 with the key `kind`. Nothing is ever pickled.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from replicax.errors import InvalidArgumentError, describe

MAX_BODY = 1 << 20
"""Bytes of the longest message that a worker may send."""

_LENGTH = struct.Struct("!I")

Message = dict[str, Any]


class BadFrameError(ValueError):
    """The bytes are no message: the connection cannot be used any more."""


def pack(kind: str, **fields: Any) -> bytes:
    """One message as a frame.

    Raises:
        InvalidArgumentError: A field is not JSON, or the message is longer than `MAX_BODY`.
    """
    return packed(_body({"kind": kind, **fields}))


def packed(body: bytes, *, limit: int = MAX_BODY) -> bytes:
    """A body as a frame.

    Raises:
        InvalidArgumentError: It is longer than `limit`.
    """
    if len(body) > limit:
        raise InvalidArgumentError(
            describe(
                f"A message to the other workers has {len(body)} bytes.",
                why=f"the control channel takes up to {limit}.",
                fix="send a digest, or write a file that all workers can read.",
            )
        )
    return _LENGTH.pack(len(body)) + body


def _body(message: Message) -> bytes:
    try:
        return json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            describe(
                f"A message to the other workers is not JSON: {error}.",
                fix="send numbers, strings, lists, dicts with string keys, True, False or None.",
            )
        ) from error


def parse(body: bytes) -> Message:
    """The message in a body.

    Raises:
        BadFrameError: It is no JSON object with a `kind`.
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadFrameError(f"no JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise BadFrameError("no JSON object with a kind")
    return message


class Decoder:
    """Cuts a stream of bytes into messages.

    Args:
        limit: Bytes of the longest body.
    """

    def __init__(self, limit: int = MAX_BODY) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete with these bytes.

        Raises:
            BadFrameError: A body is too long, or is no message.
        """
        buffer = self._buffer
        buffer += data
        found = []
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            if length > self._limit:
                raise BadFrameError(f"a message of {length} bytes; the limit is {self._limit}")
            end = _LENGTH.size + length
            if len(buffer) < end:
                break
            found.append(parse(bytes(buffer[_LENGTH.size : end])))
            del buffer[:end]
        return found
