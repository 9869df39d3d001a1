"""What the master knows of one worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ._server import Connection
from ._silence import Silence


@dataclasses.dataclass
class Member:
    """One worker, as far as it is known.

    Attributes:
        connection: None once it has ended, or before it came.
        host: Its host.
        pid: Its process there.
        silence: How long it has been silent.
        waits: How many guarded waits it has begun.
        is_waiting: Whether it is in one.
        changed: When that last changed.
        step: The step that it runs.
        lost: When its connection ended without a word.
        left: Whether it has said good-bye.
        returncode: Exit status of its process.
    """

    connection: Connection | None = None
    host: str | None = None
    pid: int | None = None
    came: bool = False
    silence: Silence | None = None
    waits: int = 0
    is_waiting: bool = False
    changed: float = 0.0
    step: int | None = None
    lost: float | None = None
    left: bool = False
    returncode: int | None = None

    def is_silent(self, now: float) -> bool:
        """Whether it should have given a sign of life, and has not."""
        expected = self.connection is not None and not self.left
        return expected and self.silence is not None and self.silence.is_over(now)


def find_stalled(members: Sequence[Member], limit: float, now: float) -> int | None:
    """The worker whose Python code stands still while another waits as long; None if there is none.

    The one that is furthest behind counts. One that has begun more waits is taken to wait: steps
    are started ahead, and a program may wait for their results where nobody is told.
    """
    still = {
        rank: member
        for rank, member in enumerate(members)
        if member.connection is not None and member.waits and now - member.changed > limit
    }
    behind = [rank for rank, each in still.items() if not each.is_waiting and not each.left]
    if not behind:
        return None
    last = min(behind, key=lambda rank: (still[rank].step or 0, still[rank].waits, rank))
    is_ahead = [each.is_waiting or each.waits > still[last].waits for each in still.values()]
    return last if any(is_ahead) else None
