"""All workers stop before the same call, although each of them is at another one.

A worker that is asked to stop tells all. Each of them then tells how many calls it has begun, from
a thread of its own, and begins no other until the greatest of these numbers is known: so many are
made by all. Who is behind can catch up, because those ahead have begun all that it waits for.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Protocol

import jax

from replicax._log import logger
from replicax.errors import CollectiveTimeoutError, ReplicaxError

from ._compat import coordination_client
from ._gather import _STORE, guard, is_alone
from ._runtime import Runtime, runtime
from ._timeouts import Timeouts

_LOOK_S = 0.1
_POLL_MS = 250
_END_S = 5.0

_log = logger("cluster")


class Link(Protocol):
    """How the workers hear of each other."""

    def listen(self, call: Callable[[], None]) -> None:
        """Has `call` called when a worker asks all to stop."""

    def tell(self) -> None:
        """Asks all to stop."""

    def gather(self, count: int) -> list[int | None]:
        """The counts of all workers; None of one that has made its last call."""

    def finish(self) -> None:
        """This worker has made its last call: if others gather, they do not wait for it."""

    def check(self) -> None:
        """Raises the failure of another worker, if there is one."""

    def close(self) -> None:
        """Ends `listen`."""


class LastCall:
    """Counts calls, and says before which one all workers stop once one of them was asked to.

    `stops_here` is called before each call, by one thread. The other methods may be called from
    any thread, and `ask` from a signal handler, too.

    Args:
        topic: Equal on all workers, and used once in a job.
        link: How the workers hear of each other; None: what this process has, and no other
            workers where it is alone.

    Examples:
        >>> calls = LastCall("an example")
        >>> calls.stops_here()
        False
        >>> calls.ask()
        >>> calls.stops_here(), calls.count
        (True, 1)
        >>> calls.close()
    """

    def __init__(self, topic: str, link: Link | None = None) -> None:
        self.count = 0
        self.is_asked = False
        self._lock = threading.Lock()
        self._is_held = False
        self._most: int | None = None
        self._is_known = threading.Event()
        self._wishes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._link = link or _link_of_this_process(topic)
        if self._link is not None:
            self._thread = threading.Thread(
                target=self._decide, args=(self._link,), name="replicax-last-call", daemon=True
            )
            self._thread.start()
            self._link.listen(self._heard)

    def ask(self) -> None:
        """Asks all workers to stop. May be repeated."""
        self.is_asked = True
        self._wishes.put("ask")

    def _heard(self) -> None:
        self.is_asked = True
        self._wishes.put("heard")

    def stops_here(self) -> bool:
        """Counts a call that is about to be made, unless all workers stop before it.

        Raises:
            WorkerFailedError: A worker failed before all knew where to stop.
        """
        if self._link is None:
            if self.is_asked:
                return True
            self.count += 1
            return False
        with self._lock:
            if not self._is_held:
                self.count += 1
                return False
        self._wait(self._link)
        if self._most is not None and self.count >= self._most:
            return True
        self.count += 1
        return False

    def close(self) -> None:
        """Ends the thread."""
        if self._link is not None and self._thread is not None:
            self._link.close()
            self._wishes.put("close")  # Has no effect where it is decided.
            if threading.current_thread() is not self._thread:
                self._thread.join(_END_S)
            self._thread = None

    def _wait(self, link: Link) -> None:
        with guard():
            while not self._is_known.wait(_LOOK_S):
                link.check()

    def _decide(self, link: Link) -> None:
        wish = self._wishes.get()
        if wish == "close":
            link.finish()
            return
        try:
            if wish == "ask":
                link.tell()
            with self._lock:
                self._is_held = True
            counts = link.gather(self.count)
            known = [count for count in counts if count is not None]
            if len(known) == len(counts):
                self._most = max(known)
            else:
                _log.warning("Not all workers can stop together: some have made their last call.")
        except CollectiveTimeoutError as error:
            _log.warning("Not all workers can stop together, so none does: %s", error)
        except ReplicaxError:
            pass  # A worker has failed: the main thread hears of that by itself.
        finally:
            self._is_known.set()


def _link_of_this_process(topic: str) -> Link | None:
    worker = runtime()
    if is_alone():
        return None
    return _StoreLink(topic) if worker is None else _ControlLink(worker, topic)


class _ControlLink:
    """Over the control channel."""

    def __init__(self, worker: Runtime, topic: str) -> None:
        self._worker, self._topic = worker, topic

    def listen(self, call: Callable[[], None]) -> None:
        self._worker.notices.listen(self._topic, call)

    def tell(self) -> None:
        self._worker.notices.tell(self._topic)

    def gather(self, count: int) -> list[int | None]:
        return self._worker.gather(self._topic, count)

    def finish(self) -> None:
        self._worker.notices.bring_nothing(self._topic)

    def check(self) -> None:
        self._worker.check()

    def close(self) -> None:
        self._worker.notices.forget(self._topic)


class _StoreLink:
    """Over the store of jax's coordination service, where nothing of ours started the workers."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, call: Callable[[], None]) -> None:
        self._thread = threading.Thread(
            target=self._poll, args=(call,), name="replicax-notice", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)  # Python must not end while it is inside of jax.

    def _poll(self, call: Callable[[], None]) -> None:
        client = coordination_client()
        while not self._ended.is_set():
            try:
                client.blocking_key_value_get(self._key(), _POLL_MS)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" in str(error):
                    continue
                return  # The service is gone.
            call()
            return

    def _key(self) -> str:
        return f"replicax/notice/{self._topic}"

    def tell(self) -> None:
        coordination_client().key_value_set(self._key(), "", allow_overwrite=True)

    def gather(self, count: int) -> list[int | None]:
        return _STORE.gather(self._topic, count, Timeouts().collective)

    def finish(self) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # The service is gone.
            _STORE.bring_nothing(self._topic)

    def check(self) -> None:
        """Nobody watches the workers."""

    def close(self) -> None:
        self._ended.set()
        atexit.unregister(self.close)
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()
