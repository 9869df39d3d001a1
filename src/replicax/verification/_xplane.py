"""The file of a profile, read without JAX's reader, which ends the process on some of its contents.

The file is a protocol buffer, `XSpace` of XLA's profiler (tsl/profiler/protobuf/xplane.proto):
planes hold lines, lines hold events; names stand in tables of their plane.
"""

from __future__ import annotations

import dataclasses
import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

_PLANES = 1
_PLANE_NAME, _PLANE_LINES, _PLANE_EVENT_NAMES, _PLANE_STAT_NAMES = 2, 3, 4, 5
_LINE_START_NS, _LINE_EVENTS = 3, 4
_EVENT_NAME, _EVENT_OFFSET_PS, _EVENT_DURATION_PS, _EVENT_STATS = 1, 2, 3, 4
_STAT_NAME, _STAT_STRING, _STAT_REFERENCE = 1, 5, 7
_STAT_NUMBERS = (3, 4)  # unsigned, signed
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_NAMED_NAME = 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NS, _PS = 1e-9, 1e-12

Fields = dict[int, list[Any]]


@dataclasses.dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        plane: Name of its plane, such as `/host:CPU` or `/device:GPU:0`.
        name: Its name.
        start: Seconds since a moment that all events have in common.
        seconds: How long it took.
        stats: What else is known of it: strings and whole numbers.
    """

    plane: str
    name: str
    start: float
    seconds: float
    stats: dict[str, Any]


def events(content: bytes) -> Iterator[Event]:
    """The events of a profile."""
    for plane in fields(content)[_PLANES]:
        yield from _of_plane(fields(plane))


def _of_plane(plane: Fields) -> Iterator[Event]:
    name = _string(plane[_PLANE_NAME])
    event_names = _names(plane[_PLANE_EVENT_NAMES])
    stat_names = _names(plane[_PLANE_STAT_NAMES])
    for line in map(fields, plane[_PLANE_LINES]):
        first = _number(line[_LINE_START_NS]) * _NS
        for event in map(fields, line[_LINE_EVENTS]):
            yield Event(
                name,
                event_names.get(_number(event[_EVENT_NAME]), ""),
                first + _number(event[_EVENT_OFFSET_PS]) * _PS,
                _number(event[_EVENT_DURATION_PS]) * _PS,
                dict(_stats(event[_EVENT_STATS], stat_names)),
            )


def _stats(stats: list[Any], names: dict[int, str]) -> Iterator[tuple[str, Any]]:
    for stat in map(fields, stats):
        name = names.get(_number(stat[_STAT_NAME]))
        if name is None:
            continue
        if stat[_STAT_STRING]:
            yield name, _string(stat[_STAT_STRING])
        elif stat[_STAT_REFERENCE]:
            yield name, names.get(_number(stat[_STAT_REFERENCE]), "")
        else:
            for number in _STAT_NUMBERS:
                if stat[number]:
                    yield name, _number(stat[number])


def _names(entries: list[Any]) -> dict[int, str]:
    """A table of names by number."""
    found = {}
    for entry in map(fields, entries):
        named = fields(entry[_ENTRY_VALUE][-1]) if entry[_ENTRY_VALUE] else fields(b"")
        found[_number(entry[_ENTRY_KEY])] = _string(named[_NAMED_NAME])
    return found


def _string(values: list[Any]) -> str:
    return values[-1].decode(errors="replace") if values else ""


def _number(values: list[Any]) -> int:
    return int(values[-1]) if values else 0


# -- protocol buffers ------------------------------------------------------------------------------


def fields(message: bytes) -> Fields:
    """The fields of a message by number, each with all its values.

    Examples:
        >>> fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69]))[1]
        [150]
    """
    found: Fields = defaultdict(list)
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        value: Any
        if kind == _VARINT:
            value, at = _varint(message, at)
        elif kind == _BYTES:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        elif kind == _FIXED64:
            value, at = struct.unpack_from("<q", message, at)[0], at + 8
        elif kind == _FIXED32:
            value, at = struct.unpack_from("<i", message, at)[0], at + 4
        else:
            message_of_error = f"no protocol buffer: a field of kind {kind}"
            raise ValueError(message_of_error)
        found[tag >> 3].append(value)
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a number
            return value, at
        shift += 7
