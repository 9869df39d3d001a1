"""A function of many elements, several at a time."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from replicax._threads._ahead import closed
from replicax._threads._at_exit import WORK
from replicax._threads._jax_settings import current_settings, settings


def parallel(
    fn: Callable[[Any, Any], Any], inputs: Iterator[tuple[Any, Any]], workers: int
) -> Iterator[Any]:
    """``fn`` of every pair, in order, with up to ``workers`` calls at a time."""
    pool = _Pool(fn, workers)
    pending: deque[Future[Any]] = deque()
    failure: BaseException | None = None
    try:
        while True:
            try:
                pair = next(inputs)
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001 - raised after the elements before it
                failure = error
                break
            pending.append(pool.submit(pair))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
        if failure is not None:
            raise failure
    finally:
        pool.close()
        closed(inputs)
        del failure  # The frame in its traceback would keep it alive.


class _Pool:
    """Threads that call one function.

    `concurrent.futures` has such a pool, too, but Python waits for its threads at the end without
    a limit, so that a function that is stuck would hang the program.
    """

    def __init__(self, fn: Callable[[Any, Any], Any], workers: int) -> None:
        self._fn, self._workers = fn, workers
        self._tasks: _Tasks = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = threading.Event()
        self._jax_settings = current_settings()

    def submit(self, pair: tuple[Any, Any]) -> Future[Any]:
        """Have a thread call the function."""
        future: Future[Any] = Future()
        self._tasks.put((future, pair))
        if len(self._threads) < self._workers:
            thread = threading.Thread(
                target=_work,
                args=(self._fn, self._tasks, self._is_closed, self._jax_settings),
                name="replicax-map",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """End the threads; calls that have not begun are dropped."""
        self._is_closed.set()
        for _ in self._threads:
            self._tasks.put(None)


_Tasks = queue.SimpleQueue[tuple[Future[Any], tuple[Any, Any]] | None]


def _work(
    fn: Callable[[Any, Any], Any],
    tasks: _Tasks,
    is_closed: threading.Event,
    jax_settings: dict[str, Any],
) -> None:
    with settings(jax_settings):
        while (task := tasks.get()) is not None and not is_closed.is_set():
            future, pair = task
            try:
                with WORK:
                    result = fn(*pair)
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
            del task, future, pair  # They may be large, and the next one may take long.
