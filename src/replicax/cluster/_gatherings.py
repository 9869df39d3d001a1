"""A worker's calls of `gather`, and the answers to them."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

from replicax.errors import CollectiveMismatchError, CollectiveTimeoutError, Table, describe

from ._control import Control
from ._frames import Message
from ._startup import table_of

_GRACE_S = 5.0
"""How much longer than the master a worker waits, before it gives up by itself."""

Key = tuple[str, int]


@dataclasses.dataclass
class _Slot:
    answered: threading.Event = dataclasses.field(default_factory=threading.Event)
    answer: Message | None = None


class Gatherings:
    """The calls that wait.

    Args:
        control: The connection to the master.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._slots: dict[Key, _Slot] = {}
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()

    def gather(self, name: str, data: Any, timeout: float, check: Callable[[], None]) -> list[Any]:
        """Sends what this worker brings, and waits for all.

        Raises:
            CollectiveTimeoutError: Somebody did not come.
            CollectiveMismatchError: The others wait elsewhere.
            Exception: What `check` raises.
        """
        with self._lock:
            number = self._numbers.get(name, 0)
            self._numbers[name] = number + 1
            slot = self._slots[name, number] = _Slot()
        try:
            self._control.send("gather", name=name, number=number, data=data, timeout=timeout)
            deadline = time.monotonic() + timeout + _GRACE_S
            while slot.answer is None and time.monotonic() < deadline:
                check()
                slot.answered.wait(deadline - time.monotonic())
        finally:
            with self._lock:
                self._slots.pop((name, number), None)
        answer = slot.answer
        if answer is not None and answer["kind"] == "gathered":
            return list(answer["data"])
        check()
        if answer is not None and "elsewhere" in answer:
            with self._lock:
                self._numbers[name] = number
            raise _elsewhere(answer["elsewhere"])
        raise CollectiveTimeoutError(_message(name, answer))

    def heard(self, message: Message) -> None:
        """An answer of the master."""
        with self._lock:
            slot = self._slots.get((message["name"], message["number"]))
        if slot is not None:
            slot.answer = message
            slot.answered.set()

    def wake(self) -> None:
        """Has all calls look whether there is a failure."""
        with self._lock:
            for slot in self._slots.values():
                slot.answered.set()


def _elsewhere(rows: list[list[Any]]) -> CollectiveMismatchError:
    return CollectiveMismatchError(
        describe(
            "The workers wait for each other in different calls.",
            table=Table(
                ["worker", "call", "at"], [[*row[:2], row[2] or "not known"] for row in rows]
            ),
            why="all workers must make the same calls in the same order: each of them takes all "
            "workers.",
            fix="do not make such a call under a condition that only some workers meet, such as "
            "`if is_chief:`.",
        )
    )


def _message(name: str, answer: Message | None) -> str:
    if answer is None:
        return describe(f"The meeting {name!r} had no answer from the master.")
    missing = ", ".join(f"worker {rank}" for rank in answer["missing"])
    return describe(
        f"The meeting {name!r} did not take place: {missing} did not come.",
        table=table_of(answer.get("workers") or []),
        why=f"{answer['why']}.",
        fix="have all workers make the same calls in the same order.",
    )
