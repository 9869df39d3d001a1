"""Somebody looks at a job that runs: each worker is asked for its record, not for long."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ._frames import Message, pack
from ._server import Connection

PATIENCE_S = 2.0
"""How long a worker may take to answer: it does so from a thread of its own."""

MOST_AT_ONCE = 16


@dataclasses.dataclass
class _Inspection:
    """One look.

    Attributes:
        connection: Who looks.
        missing: The workers that have not answered.
        until: When they are given up.
    """

    connection: Connection
    missing: set[int]
    until: float


class Inspections:
    """All looks that are under way. It knows no clock: the time comes in.

    Args:
        send: Sends a frame to a worker.
        facts: What the master knows of the job, for who looks.
    """

    def __init__(
        self, send: Callable[[int, bytes], None], facts: Callable[[], dict[str, object]]
    ) -> None:
        self._send, self._facts = send, facts
        self._looks: dict[int, _Inspection] = {}
        self._count = 0

    def ask(self, connection: Connection, workers: set[int], now: float) -> None:
        """Asks these workers for their records; those who look get them one by one."""
        if len(self._looks) >= MOST_AT_ONCE:
            connection.close()
            return
        self._count += 1
        self._looks[self._count] = _Inspection(connection, set(workers), now + PATIENCE_S)
        for rank in workers:
            self._send(rank, pack("record", look=self._count))
        self._end_if_done(self._count)

    def answered(self, rank: int, message: Message) -> None:
        """A worker has sent its record.

        Raises:
            TypeError: (also KeyError, ValueError) It makes no sense.
        """
        number, record = int(message["look"]), message["record"]
        if not isinstance(record, dict):
            raise TypeError("no record")
        look = self._looks.get(number)
        if look is not None and rank in look.missing:
            look.missing.remove(rank)
            look.connection.send(pack("record", worker=rank, record=record))
            self._end_if_done(number)

    def tick(self, now: float) -> None:
        """Gives up who has not answered in time."""
        for number in [number for number, look in self._looks.items() if now >= look.until]:
            self._end(number)

    def _end_if_done(self, number: int) -> None:
        if not self._looks[number].missing:
            self._end(number)

    def _end(self, number: int) -> None:
        look = self._looks.pop(number)
        look.connection.send(pack("done", silent=sorted(look.missing), **self._facts()))
        look.connection.close()
