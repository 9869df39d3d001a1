"""The canonical status codes."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """A canonical status code, with the number that every runtime gives it.

    The XLA runtime, the coordination service and gRPC use the same numbers and names.

    Examples:
        >>> Code.INVALID_ARGUMENT
        <Code.INVALID_ARGUMENT: 3>
        >>> Code["UNAVAILABLE"].value
        14
    """

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16
