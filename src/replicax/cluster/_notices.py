"""Notices: what one worker lets all others know at once, whatever they do just then."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ._control import Control
from ._frames import Message

_FOR_GOOD_S = 1e9


class Notices:
    """The notices that have come, and who listens.

    Args:
        control: The connection to the master, which hands a notice to all workers.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._heard: set[str] = set()
        self._listeners: dict[str, Callable[[], None]] = {}

    def tell(self, topic: str) -> None:
        """Lets all workers know, this one included."""
        self._control.send("notice", topic=topic)

    def bring_nothing(self, topic: str) -> None:
        """Has the meeting of that name take place without this worker, whenever that is."""
        self._control.send("gather", name=topic, number=0, data=None, timeout=_FOR_GOOD_S)

    def listen(self, topic: str, call: Callable[[], None]) -> None:
        """Has `call` called, in another thread or here, when a notice comes or if one has come."""
        with self._lock:
            self._listeners[topic] = call
            has_come = topic in self._heard
        if has_come:
            call()

    def forget(self, topic: str) -> None:
        """Ends `listen`."""
        with self._lock:
            self._listeners.pop(topic, None)

    def heard(self, message: Message) -> None:
        """A notice has come."""
        topic = str(message["topic"])
        with self._lock:
            self._heard.add(topic)
            call = self._listeners.get(topic)
        if call is not None:
            call()
