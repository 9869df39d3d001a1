"""Elements read in advance by a thread that ends with the iterator that started it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

from replicax import errors
from replicax._threads._at_exit import WORK
from replicax._threads._jax_settings import current_settings, settings

T = TypeVar("T")


def closed(iterator: Iterator[Any]) -> None:
    """Close an iterator that can be closed: a generator, which may own threads."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


class Ahead(Iterator[T], Generic[T]):
    """The same elements, up to ``size`` of them read in advance by a thread.

    The thread starts with the first element that is asked for. It knows the channel and the
    elements, not this object, so the object can be collected, which ends the thread. An exception
    that comes to the consumer from elsewhere, such as Ctrl-C, loses no element.

    Args:
        elements: Read by the thread alone.
        size: How many elements may wait.

    Attributes:
        has_failed: Whether the elements ended with an exception, which the consumer was given.
    """

    def __init__(self, elements: Iterator[T], size: int) -> None:
        self._elements: Iterator[T] | None = elements
        self._channel = _Channel(size)
        self.has_failed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._elements is not None:
            elements, self._elements = self._elements, None
            threading.Thread(
                target=_fill,
                args=(self._channel, elements, current_settings()),
                name="replicax-ahead",
                daemon=True,
            ).start()
        item = self._channel.get()
        if item is None:
            raise StopIteration
        element, error = item
        if error is None:
            return element  # type: ignore[no-any-return]
        self.has_failed = True
        try:
            raise error
        finally:
            del error, item  # The frame in its traceback would keep it alive.

    def close(self) -> None:
        """End the thread; elements that were read in advance are dropped."""
        self._channel.close()
        if self._elements is not None:
            elements, self._elements = self._elements, None
            closed(elements)

    def __del__(self) -> None:
        self.close()


class _Channel:
    """A bounded queue with an end on both sides; of queues in C, as each step waits for it."""

    def __init__(self, size: int) -> None:
        self._items: queue.SimpleQueue[tuple[Any, BaseException | None] | None]
        self._items, self._room = queue.SimpleQueue(), queue.SimpleQueue[None]()
        for _ in range(size):
            self._room.put(None)
        self._is_closed = self._is_over = False

    def put(self, item: Any, error: BaseException | None = None) -> bool:
        """Wait for room; False if nobody takes anything any more."""
        if not self._is_closed:
            self._room.get()
        if not self._is_closed:
            self._items.put((item, error))
        return not self._is_closed

    def complete(self) -> None:
        self._items.put(None)

    def close(self) -> None:
        self._is_closed = True
        self._room.put(None)  # for who waits for room
        try:
            while True:
                self._items.get(block=False)
        except Exception:  # noqa: BLE001, S110 - it is empty; names are gone where Python ends
            pass
        self._items.put(None)  # for who waits for an item

    def get(self) -> tuple[Any, BaseException | None] | None:
        """Wait for an item; None at the end."""
        if self._is_over:
            return None
        item = self._items.get()
        if item is None:
            self._is_over = True
        else:
            self._room.put(None)
        return item


_END = object()


def _fill(channel: _Channel, elements: Iterator[Any], jax_settings: dict[str, Any]) -> None:
    try:
        with settings(jax_settings):
            while True:
                with WORK:
                    element = next(elements, _END)
                if element is _END or not channel.put(element):
                    break
                del element  # It may be large, and the next one may take long.
    except BaseException as error:  # noqa: BLE001 - it is the consumer's, in its turn
        channel.put(None, error)
    finally:
        try:
            # Closing runs code of the user's generators. Python may be at its end, though.
            with contextlib.suppress(errors.CancelledError), WORK:
                closed(elements)
        finally:
            channel.complete()
