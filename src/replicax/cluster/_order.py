"""What this process has run together with the other workers, in order.

A program that spans processes, and a meeting, is an entry. Starting a program only appends a number
to a list: the thread that watches packs what is new, and tells the master, who compares the
workers at equal places (`_orders`). Meetings tell each other the place and a hash of all before it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

VARIANT_BITS = 32
"""The low bits of an entry tell runs of one program apart."""

NUMBER_BITS = 16
"""The lowest of them by plain numbers, the others by shapes."""

_PRIME = (1 << 61) - 1
_FACTOR = 0x1F3A5B7C9D2E4F61 % _PRIME
_INVERSE = pow(_FACTOR - 1, -1, _PRIME)

MOST_RUNS = 2048
"""Entries of one message to the master; repetitions count once."""

_LONGEST = 300  # characters
_KEPT_NAMES = 4096
_KEPT_MEETINGS = 256

Described = tuple[str, str]
"""What an entry is, and the line of user code."""


def rolled(value: int, entry: int, count: int) -> int:
    """The hash of an order after `count` more of one entry.

    Examples:
        >>> twice = rolled(rolled(0, 5, 1), 5, 1)
        >>> rolled(0, 5, 2) == twice, rolled(rolled(0, 5, 1), 6, 1) == rolled(rolled(0, 6, 1), 5, 1)
        (True, False)
    """
    power = pow(_FACTOR, count, _PRIME)
    return (value * power + (entry + 1) * (power - 1) * _INVERSE) % _PRIME


def entry_of(text: str) -> int:
    """The number of an entry, equal for equal texts on all workers; its low bits are 0."""
    digest = hashlib.sha256(text.encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> (VARIANT_BITS + 1)) << VARIANT_BITS


class Order:
    """The entries of this process.

    Attributes:
        ran: Entries that were made since anybody looked. Append to it, and nothing else.
        entering: The program that is being started, or 0. A small one runs while it is started,
            and may wait there for the other workers.
        is_watched: Whether a master wants to be told.
        started: The program that all workers have last agreed to start, without the bits of
            numbers.
    """

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.is_watched = False
        self.started = 0
        self.entering = 0
        self._lock = threading.Lock()
        self._count = 0
        self._hash = 0
        self._last = 0
        self._untold: list[list[int]] = []
        self._told = 0
        self._names: dict[int, Described] = {}
        self._new_names: dict[int, Described] = {}
        self._said: deque[tuple[int, str, str]] = deque(maxlen=_KEPT_MEETINGS)
        self._latest: tuple[int, str, str] = (-1, "", "")
        self._seen_entering = (0, 0)
        self._told_entering = 0

    def restart(self) -> None:
        """Forgets all, for a job that begins. The list stays the same object."""
        with self._lock:
            self.ran.clear()
            fresh = Order()
            fresh.ran = self.ran
            self.__dict__.update(fresh.__dict__, _lock=self._lock)

    def name(self, entry: int, what: str, site: str) -> None:
        """Says what the entries of a program are; repeatable."""
        with self._lock:
            key = entry >> VARIANT_BITS
            if key not in self._names and len(self._names) < _KEPT_NAMES:
                described = what[:_LONGEST], site[:_LONGEST]
                self._names[key] = self._new_names[key] = described

    def meet(self, name: str, doing: str, site: str) -> None:
        """Enters a meeting.

        Args:
            name: Of the meeting. Meetings of one name meet each other.
            doing: What the worker is about to do; may differ, for the meeting compares that.
            site: The line of user code.
        """
        with self._lock:
            self.ran.append(entry_of(f"meeting {name}"))
            self._pack()
            self._latest = (self._count - 1, doing[:_LONGEST], site[:_LONGEST])
            if self.is_watched:
                self._said.append(self._latest)

    def state(self) -> list[int]:
        """How many entries there are, and a hash of all in order."""
        with self._lock:
            self._pack()
            return [self._count, self._hash]

    def name_of(self, entry: int) -> str:
        """What the entries of a program are."""
        return self._names.get(entry >> VARIANT_BITS, ("?", "-"))[0]

    def last(self) -> Described:
        """What the last entry was."""
        with self._lock:
            self._pack()
            if self._latest[0] == self._count - 1:
                return self._latest[1:]
            return self._names.get(self._last >> VARIANT_BITS, ("-", "-"))

    def news(self) -> Iterator[dict[str, Any]]:
        """What the master has not been told yet, as messages; the last one says what is entered.

        A program is entered if it was being started at the last call, too: one that cannot be
        started after all (other arguments) is no entry.
        """
        with self._lock:
            self._pack()
            untold, self._untold = self._untold, []
            names, self._new_names = self._new_names, {}
            said = list(self._said)
            self._said.clear()
            place, self._told = self._told, self._count
            seen, self._seen_entering = self._seen_entering, (self._count, self.entering)
            entering = self.entering if seen == self._seen_entering else 0
            was_entering, self._told_entering = self._told_entering, entering
        if not (untold or names or said) and entering == was_entering:
            return
        named: list[Any] = [[key, *described] for key, described in names.items()]
        for start in range(0, len(untold) or 1, MOST_RUNS):
            runs = untold[start : start + MOST_RUNS]
            is_last = start + MOST_RUNS >= len(untold)
            yield {
                "from": place,
                "runs": runs,
                "names": named if start == 0 else [],
                "said": said if start == 0 else [],
                "entering": entering if is_last else 0,
            }
            place += sum(count for _, count in runs)

    @property
    def is_entering(self) -> bool:
        """Whether a program was being started when the news were made, and they left it out."""
        return bool(self._seen_entering[1]) and not self._told_entering

    def _pack(self) -> None:
        """Packs the entries that were made since the last time."""
        count = len(self.ran)
        if not count:
            return
        fresh = self.ran[:count]
        del self.ran[:count]
        untold = self._untold
        start = 0
        for place in range(1, count + 1):
            if place < count and fresh[place] == fresh[start]:
                continue
            entry, length = fresh[start], place - start
            self._hash = rolled(self._hash, entry, length)
            if not self.is_watched:
                pass
            elif untold and untold[-1][0] == entry:
                untold[-1][1] += length
            else:
                untold.append([entry, length])
            start = place
        self._count += count
        self._last = fresh[-1]


ORDER = Order()
"""That of this process."""
