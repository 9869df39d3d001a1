"""The ring of the last entries, and what entries are about.

An entry is a list: `[subject, start, end, run, place]`. It is in the ring from its start, so that
one which never ends is seen. What a step pays is written out where it starts its program
(`step/_program.py`, `step/_short_path.py`): two looks at the clock, one list, one count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

CAPACITY = 1000
"""Entries that are kept."""

SUBJECT, START, END, RUN, PLACE = range(5)
"""The parts of an entry.

`START` and `END` are nanoseconds of the monotonic clock; an end of 0 has not come, and that of an
entry which raised is negative. `RUN` counts the runs of the subject; `PLACE` counts the entries
that all workers have in common, and is None for others. Both are drawn at the end, from 0.
"""

Entry = list[Any]


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective that a replica asks for.

    Attributes:
        kind: Such as `all_reduce`.
        op: Name of the reduce op, or None.
        group_key: Key of the group of devices.
        instance_key: Key of the collective in the group.
        arrays: How many arrays it takes.
        bytes: Bytes that one replica puts in.
        site: The line of user code.
    """

    kind: str
    op: str | None
    group_key: int
    instance_key: int
    arrays: int
    bytes: int
    site: str


class Subject:
    """What entries are about: a compiled step, a collective of the eager runner, a meeting.

    Args:
        kind: `step`, `collective` or `meeting`.
        name: What it is called.
        site: The line of user code.
        place: Draws the place of an entry, if all workers have it; else None.
        replicas: Numbers of the replicas of this process that take part.

    Attributes:
        runs: How many entries have ended well.
        collectives: What the replicas ask for, in order, for each trace of a step.
        is_awaited: Whether the end of an entry is that of the work, not of starting it.
    """

    __slots__ = (
        "collectives",
        "is_awaited",
        "kind",
        "name",
        "place",
        "replicas",
        "runs",
        "site",
    )

    def __init__(
        self,
        kind: str,
        name: str,
        site: str,
        place: Callable[[], int] | None,
        *,
        is_awaited: bool,
        replicas: Sequence[int] = (),
    ) -> None:
        self.kind, self.name, self.site = kind, name, site
        self.place, self.is_awaited = place, is_awaited
        self.replicas = tuple(replicas)
        self.runs = 0
        self.collectives: list[tuple[Collective, ...]] = []

    def run(self) -> int:
        """Draws the number of a run. Entries of one subject end one after the other."""
        number = self.runs
        self.runs = number + 1
        return number


class Recorder:
    """The last entries of a process. No locks: a signal handler may look at any time.

    Args:
        capacity: How many entries are kept.

    Attributes:
        keep: Takes a new entry into the ring.
        append: Takes a new entry. Look it up each time: a trace puts its own here.
        wait: While a trace waits for each step, what is called with its entry and output.
        is_traced: Whether a trace is being made. Who calls `keep` learns it from
            `collectives.TURNS.changes`.
        identity: What tells this process from the other workers.
        folder: Where records are written; None takes a folder in that of temporary files.

    Examples:
        >>> recorder = Recorder(capacity=2)
        >>> subject = recorder.subject("meeting", "an example", "train.py:3")
        >>> for _ in range(3):
        ...     with recorder.recorded(subject):
        ...         pass
        >>> [entry[RUN] for entry in recorder.entries()]
        [1, 2]
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._ring: deque[Entry] = deque(maxlen=capacity)
        self.keep: Callable[[Entry], None] = self._ring.append
        self.append = self.keep
        self.wait: Callable[[Entry, Any], None] | None = None
        self.is_traced = False
        self.identity: dict[str, Any] = {}
        self.folder: str | None = None
        self._shared = itertools.count().__next__

    def subject(
        self,
        kind: str,
        name: str,
        site: str,
        *,
        is_shared: bool = False,
        is_awaited: bool = True,
        replicas: Sequence[int] = (),
    ) -> Subject:
        """What entries will be about.

        Args:
            kind: `step`, `collective` or `meeting`.
            name: What it is called.
            site: The line of user code.
            is_shared: Whether all workers have the same entries of it, in the same order.
            is_awaited: Whether an entry ends when the work does.
            replicas: Numbers of the replicas of this process that take part.
        """
        return Subject(
            kind,
            name,
            site,
            self._shared if is_shared else None,
            is_awaited=is_awaited,
            replicas=replicas,
        )

    @contextlib.contextmanager
    def recorded(self, subject: Subject) -> Iterator[None]:
        """Enters what happens inside. For all that is not as frequent as steps."""
        entry = [subject, time.monotonic_ns(), 0, None, None]
        self.append(entry)
        try:
            yield
        except BaseException:
            entry[END] = -time.monotonic_ns()
            raise
        entry[RUN] = subject.run()
        if subject.place is not None:
            entry[PLACE] = subject.place()
        entry[END] = time.monotonic_ns()

    def gave_up(self, subject: Subject, *, has_run: bool) -> None:
        """An entry of a subject will not end: its call raised.

        Args:
            subject: What it was about.
            has_run: Whether anything ran; otherwise the entry is taken back.
        """
        for entry in reversed(self._kept()):
            if entry[SUBJECT] is subject and not entry[END]:
                entry[END] = -time.monotonic_ns()
                entry[RUN] = None if has_run else TAKEN_BACK
                return

    def entries(self) -> list[Entry]:
        """The entries that are kept, the oldest first, without those that were taken back."""
        return [entry for entry in self._kept() if entry[RUN] != TAKEN_BACK]

    def _kept(self) -> list[Entry]:
        while True:
            try:
                return list(self._ring)
            except RuntimeError:  # Another thread appended meanwhile.
                continue


TAKEN_BACK = -1
"""The run of an entry whose program was not started after all."""

RECORDER = Recorder()
"""That of this process."""
