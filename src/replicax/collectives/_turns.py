"""Programs of a simulated CPU mesh take turns.

XLA's collectives on the CPU block one pool thread for each waiting device. Two programs that do
not depend on each other may then wait for one another's threads, and XLA aborts the process after
40 s. So a program starts only when the one before it has ended, unless it needs what that one
makes: a step that replaces its state follows itself without waiting, up to `IN_FLIGHT` times.
GPUs and TPUs run programs in the order in which they are started, and need no turns.
"""

from __future__ import annotations

from typing import Any

from replicax.cluster import guard

IN_FLIGHT = 32
"""How many steps of one chain may be under way. With hundreds, the same dead-lock was seen."""


class Turns:
    """The program that was started last, and whether all is as it was then.

    Attributes:
        output: An array that it makes, or None. Who is given this array to reuse need not wait.
        in_a_row: How many programs were started since the last wait.
        changes: Rises with all that a step must look at before it goes on as in its last run: an
            array was lent, more kinds of arguments are donated, somebody traces the steps.
    """

    __slots__ = ("changes", "in_a_row", "output")

    def __init__(self) -> None:
        self.output: Any = None
        self.in_a_row = 0
        self.changes = 0

    def settle(self) -> None:
        """Wait until no program is under way."""
        output, self.output, self.in_a_row = self.output, None, 0
        if output is not None and not output.is_deleted():
            with guard():
                output.block_until_ready()


TURNS = Turns()
"""Those of this process."""
