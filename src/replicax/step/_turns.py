"""Programs of a simulated CPU mesh take turns.

XLA's collectives on the CPU block one pool thread for each waiting device. Two programs that do
not depend on each other may then wait for one another's threads, and XLA aborts the process after
40 s. So a program starts only when the one before it has ended, unless it needs what that one
makes: a step that replaces variables follows itself without waiting, up to `IN_FLIGHT` times.
GPUs and TPUs run programs in the order in which they are started, and need no turns.
"""

from __future__ import annotations

from typing import Any

IN_FLIGHT = 32
"""How many steps of one chain may be under way. With hundreds, the same dead-lock was seen."""


class Turns:
    """Which program ran last, and one of its outputs."""

    def __init__(self) -> None:
        self.last: object = None
        self._output: Any = None
        self._in_a_row = 0

    def begin(self, program: object, *, follows_itself: bool) -> None:
        """Wait until ``program`` may start."""
        if follows_itself and self.last is program and self._in_a_row < IN_FLIGHT:
            return
        self.settle()

    def started(self, program: object, output: Any) -> None:
        """Note that ``program`` was started, and an output that tells when it ends."""
        self._in_a_row += 1
        self.last, self._output = program, output

    def settle(self) -> None:
        """Wait until no program is under way."""
        output, self._output, self._in_a_row = self._output, None, 0
        if output is not None and not output.is_deleted():
            output.block_until_ready()


TURNS = Turns()
"""Those of this process."""
