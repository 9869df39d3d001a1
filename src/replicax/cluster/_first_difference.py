"""Where long lists of the workers differ first, without sending the lists."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ._gather import gather

_PART = 2048
"""Lines that are compared at once."""


def digest_of(lines: Sequence[str]) -> str:
    """A hash of lines of text, as 16 hexadecimal digits.

    Examples:
        >>> digest_of(["ab", "c"]) == digest_of(["a", "bc"])
        False
    """
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def first_difference(lines: Sequence[str]) -> int | None:
    """The number of the first line in which the workers differ; None if there is none. Collective.

    Examples:
        >>> first_difference(["one", "two"])
    """
    parts = [lines[start : start + _PART] for start in range(0, len(lines), _PART)]
    part = _first([digest_of(part) for part in parts])
    if part is None:
        return None
    place = _first([digest_of([line]) for line in (parts[part] if part < len(parts) else [])])
    return None if place is None else part * _PART + place


def _first(digests: list[str]) -> int | None:
    found = gather("first difference", digests)
    longest = max(map(len, found))
    columns = ([one[i] if i < len(one) else None for one in found] for i in range(longest))
    return next((i for i, column in enumerate(columns) if len(set(column)) > 1), None)
