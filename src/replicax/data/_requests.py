"""Which elements a stage asks of the one below: blocks of numbers and of their epochs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

Ids: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Block: TypeAlias = tuple[Ids, Ids]
Requests: TypeAlias = Iterator[Block]

_BLOCK = 256


def requests(epoch: int, start: int, size: int | None) -> Requests:
    """All elements of an epoch from ``start`` on; without end if ``size`` is None."""
    while size is None or start < size:
        stop = start + _BLOCK if size is None else min(start + _BLOCK, size)
        yield np.arange(start, stop), np.full(stop - start, epoch)
        start = stop


def recorded(wanted: Requests, record: deque[tuple[int, int]]) -> Requests:
    """The same requests; (element, epoch) of each is noted before it is handed on."""
    for indices, epochs in wanted:
        record.extend(zip(indices.tolist(), epochs.tolist(), strict=True))
        yield indices, epochs
