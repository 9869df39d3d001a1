"""Meetings of all workers on the control channel, as the master keeps them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._frames import MAX_BODY, pack, packed

ELSEWHERE_S = 1.0
"""How long all workers wait in different meetings before they are told: a thread may yet come."""

Key = tuple[str, int]
Send = Callable[[int, bytes], None]


@dataclasses.dataclass
class _Meeting:
    deadline: float
    timeout: float
    brought: dict[int, Any] = dataclasses.field(default_factory=dict)


class Gathers:
    """The meetings that are open. The n-th call with a name meets the n-th call elsewhere.

    Args:
        world_size: Number of workers.
        send: Sends a frame to a worker.
    """

    def __init__(self, world_size: int, send: Send) -> None:
        self._world_size = world_size
        self._send = send
        self._open: dict[Key, _Meeting] = {}
        self._over: dict[Key, bytes] = {}  # the answer to who comes too late
        self._changed = 0.0

    def bring(self, rank: int, key: Key, data: Any, timeout: float, now: float) -> None:
        """A worker has come to a meeting; the last one ends it."""
        self._changed = now
        if key in self._over:
            self._send(rank, self._over[key])
            return
        meeting = self._open.setdefault(key, _Meeting(now + timeout, timeout))
        meeting.brought[rank] = data
        if len(meeting.brought) < self._world_size:
            return
        del self._open[key]
        body = json.dumps(
            {
                "kind": "gathered",
                "name": key[0],
                "number": key[1],
                "data": [meeting.brought[each] for each in range(self._world_size)],
            },
            separators=(",", ":"),
        ).encode()
        frame = packed(body, limit=result_limit(self._world_size))
        for each in range(self._world_size):
            self._send(each, frame)

    def late(self, now: float) -> list[tuple[Key, float, list[int]]]:
        """The meetings whose time is over: key, seconds waited, who did not come."""
        over = [key for key, meeting in self._open.items() if now >= meeting.deadline]
        return [(key, self._open[key].timeout, self._missing(key)) for key in over]

    def dismiss(self, key: Key, why: str, workers: Sequence[Mapping[str, Any]] = ()) -> None:
        """Sends those who came to a meeting home; `workers` tells them where all are."""
        missing = self._missing(key)
        meeting = self._open.pop(key)
        told = {"missing": missing, "why": why, "workers": workers}
        frame = pack("ungathered", name=key[0], number=key[1], **told)
        self._over[key] = frame
        for rank in meeting.brought:
            self._send(rank, frame)

    def part_the_lost(self, now: float) -> None:
        """Sends all home where every worker waits, but not all in one meeting.

        Nobody counts such a meeting: what they do next may well be the same.
        """
        waiting = {rank for meeting in self._open.values() for rank in meeting.brought}
        if len(waiting) < self._world_size or now - self._changed < ELSEWHERE_S:
            return
        rows = [
            [rank, _told(meeting.brought[rank], "call") or name, _told(meeting.brought[rank], "at")]
            for (name, _), meeting in self._open.items()
            for rank in meeting.brought
        ]
        for (name, number), meeting in self._open.items():
            frame = pack("ungathered", name=name, number=number, elsewhere=sorted(rows))
            for rank in meeting.brought:
                self._send(rank, frame)
        self._open.clear()

    def dismiss_all(self, why: str) -> None:
        """Sends all who wait home: somebody has left who will never come."""
        for key in list(self._open):
            self.dismiss(key, why)

    def waiting_for(self, rank: int) -> list[Key]:
        """The meetings that a worker has not come to."""
        return [key for key, meeting in self._open.items() if rank not in meeting.brought]

    def _missing(self, key: Key) -> list[int]:
        brought = self._open[key].brought
        return [rank for rank in range(self._world_size) if rank not in brought]


def _told(data: Any, name: str) -> str:
    """What a worker said of its call, where it did."""
    return str(data.get(name) or "")[:200] if isinstance(data, dict) else ""


def result_limit(world_size: int) -> int:
    """Bytes of the longest message from the master: all that the workers may bring at once."""
    return MAX_BODY * (world_size + 1)
