"""Guards: contexts around blocking waits, which a failure elsewhere ends."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Waits(Protocol):
    """What a guard asks of the runtime."""

    def check(self) -> None:
        """Raises the failure, if there is one."""

    def after_wait(self, error: BaseException) -> None:
        """Raises what an exception inside of a guard means; returns where it means nothing."""


class MainGuard:
    """The guard of the main thread, which a signal can reach.

    It is one object for the whole process, and does little: right after a wait the caches are
    cold, and each Python call costs more than a microsecond.

    Attributes:
        depth: Above 0 while the main thread waits.
        count: How many waits have begun.
        has_failed: Whether a worker, or the master, has failed.
    """

    __slots__ = ("_waits", "count", "depth", "has_failed")

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self.depth = 0
        self.count = 0
        self.has_failed = False

    def __enter__(self) -> None:
        self.depth += 1
        self.count += 1
        if self.has_failed:
            self.depth -= 1
            self._waits.check()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.depth -= 1
        if error is not None:
            self._waits.after_wait(error)
        elif self.has_failed:
            self._waits.check()


class OtherGuard:
    """The guard of any other thread. It is left when the engine's sockets are shut."""

    __slots__ = ("_waits",)

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def __enter__(self) -> None:
        self._waits.check()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._waits.check()
        else:
            self._waits.after_wait(error)
