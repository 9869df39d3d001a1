"""Work in threads that end with the iterator that started them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


def closed(iterator: Iterator[Any]) -> None:
    """Close an iterator that can be closed: a generator, which may own threads."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


class _Channel:
    """A bounded queue with an end on both sides."""

    def __init__(self, size: int) -> None:
        self._items: deque[tuple[Any, BaseException | None]] = deque()
        self._size, self._condition = size, threading.Condition()
        self._is_closed = self._is_complete = False

    def put(self, item: Any, error: BaseException | None = None) -> bool:
        """Wait for room; False if nobody takes anything any more."""
        with self._condition:
            self._condition.wait_for(lambda: len(self._items) < self._size or self._is_closed)
            if not self._is_closed:
                self._items.append((item, error))
                self._condition.notify_all()
            return not self._is_closed

    def complete(self) -> None:
        with self._condition:
            self._is_complete = True
            self._condition.notify_all()

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._items.clear()
            self._condition.notify_all()

    def get(self) -> tuple[Any, BaseException | None] | None:
        """Wait for an item; None at the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._items or self._is_complete)
            item = self._items.popleft() if self._items else None
            self._condition.notify_all()
            return item


def _fill(channel: _Channel, elements: Iterator[Any]) -> None:
    try:
        for element in elements:
            if not channel.put(element):
                break
    except BaseException as error:  # noqa: BLE001 - it is the consumer's, in its turn
        channel.put(None, error)
    finally:
        closed(elements)
        channel.complete()


def ahead(elements: Iterator[Any], size: int) -> Iterator[Any]:
    """The same elements, up to ``size`` of them read in advance by a thread.

    The thread starts with the first element that is asked for. It knows the channel and the
    elements, not this generator, so the generator can be collected, which ends the thread.
    """
    channel = _Channel(size)
    threading.Thread(
        target=_fill, args=(channel, elements), name="replicax-prefetch", daemon=True
    ).start()
    try:
        while (item := channel.get()) is not None:
            element, error = item
            if error is not None:
                raise error
            yield element
    finally:
        channel.close()


def parallel(
    fn: Callable[[Any, Any], Any], inputs: Iterator[tuple[Any, Any]], workers: int
) -> Iterator[Any]:
    """``fn`` of every pair, in order, with up to ``workers`` calls at a time."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="replicax-map")
    pending: deque[Future[Any]] = deque()
    failure: BaseException | None = None
    try:
        while True:
            try:
                element, number = next(inputs)
            except StopIteration:
                break
            except BaseException as error:  # noqa: BLE001 - raised after the elements before it
                failure = error
                break
            pending.append(pool.submit(fn, element, number))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
        if failure is not None:
            raise failure
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        closed(inputs)
