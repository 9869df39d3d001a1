"""What a launcher waits for: one queue for workers, signals and other hosts."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Event(NamedTuple):
    """Something happened.

    Attributes:
        kind: `exited` (who: local rank, value: exit status), `signal` (value: its number),
            `node` (who: node, fields: its message) or `lost` (who: node).
        who: See `kind`.
        value: See `kind`.
        fields: See `kind`.
    """

    kind: str
    who: int = -1
    value: int = 0
    fields: dict[str, Any] | None = None


Events = queue.SimpleQueue[Event]


class Interrupted(Exception):  # noqa: N818 - no error: somebody wants the launch to end
    """A signal came before the workers were there.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def next_event(events: Events, seconds: float) -> Event | None:
    """The next event; None if there is none for so long."""
    try:
        return events.get(timeout=max(seconds, 0.0))
    except queue.Empty:
        return None


@contextlib.contextmanager
def signals_as(events: Events) -> Iterator[None]:
    """Turns the signals that end a program into events; nothing happens outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: object) -> None:
        del frame
        events.put(Event("signal", value=number))  # may be called in the middle of another put

    before = {}
    for number in HANDLED:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, and means it
            before[number] = signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
