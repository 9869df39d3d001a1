"""An all-gather of small messages over the workers, however they were started."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import defaultdict
from typing import Any

import jax

from replicax.errors import (
    CollectiveTimeoutError,
    Table,
    call_site,
    describe,
    from_exception,
)
from replicax.recording import RECORDER

from ._compat import coordination_client, is_initialized
from ._order import ORDER
from ._runtime import runtime
from ._timeouts import Timeouts

# A wait inside jax's client does not hear Ctrl-C.
_SLICE_SECONDS = 0.25


def gather(name: str, data: Any, *, timeout: float | None = None) -> list[Any]:
    """Gives every worker the data of all. Context: any. Collective.

    Workers that were not started by Replicax (`jax.distributed.initialize`) meet in the store of
    jax's coordination service.

    Args:
        name: Of the meeting: the n-th call with a name meets the n-th call elsewhere.
        data: What JSON can say, and small: names, shapes and digests rather than arrays.
        timeout: Seconds to wait for the others; None for `Timeouts.collective`.

    Returns:
        The data of each worker, by rank.

    Raises:
        CollectiveTimeoutError: A worker did not come in time; the message names it.
        WorkerFailedError: A worker failed.

    Examples:
        >>> gather("example", {"rows": 3})
        [{'rows': 3}]
    """
    return meet(name, data, f"the meeting {name!r}", site_here(), timeout=timeout)


def site_here() -> str:
    """The line of user code, in words."""
    return str(call_site() or "not known")


def meet(name: str, data: Any, doing: str, site: str, *, timeout: float | None = None) -> list[Any]:
    """As `gather`, and says in the order of what runs why the workers meet. Collective."""
    worker = runtime()
    if is_alone():
        return [json.loads(json.dumps(data))]
    ORDER.meet(name, doing, site)
    with RECORDER.recorded(RECORDER.subject("meeting", doing, site, is_shared=True)):
        if worker is not None:
            try:
                return worker.gather(name, data, timeout=timeout)
            except CollectiveTimeoutError:
                worker.compare_orders()  # Somebody has left, or is elsewhere, which says more.
                raise
        return _STORE.gather(name, data, Timeouts().collective if timeout is None else timeout)


def is_alone() -> bool:
    """Whether this process is none of several workers. Context: any; starts nothing.

    Examples:
        >>> is_alone()
        True
    """
    worker = runtime()
    if worker is not None:
        return worker.world_size == 1
    return not is_initialized() or jax.process_count() == 1


_NOTHING = contextlib.nullcontext()


def guard() -> contextlib.AbstractContextManager[None]:
    """A context for a blocking wait, which a failure of another worker ends. Context: any.

    Raises:
        WorkerFailedError: At entry, inside or at the end, once another worker has failed.

    Examples:
        >>> with guard():
        ...     pass
    """
    worker = runtime()
    return _NOTHING if worker is None else worker.guard()


class _Store:
    """Meetings in the store of jax's coordination service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: defaultdict[str, int] = defaultdict(int)

    def gather(self, name: str, data: Any, seconds: float) -> list[Any]:
        with self._lock:
            number = self._numbers[name]
            self._numbers[name] += 1
        client, rank = coordination_client(), jax.process_index()
        client.key_value_set(_key(name, number, rank), json.dumps(data))
        deadline = time.monotonic() + seconds
        texts = []
        for worker in range(jax.process_count()):
            while (text := _received(client, _key(name, number, worker), deadline)) is None:
                if time.monotonic() >= deadline:
                    raise _too_late(client, name, number, seconds)
            texts.append(text)
        if number:  # All have come to this meeting, so nobody reads the one before any more.
            client.key_value_delete(_key(name, number - 1, rank))
        return [json.loads(text) for text in texts]

    def bring_nothing(self, name: str) -> None:
        """Has the next meeting of that name take place without this worker, whenever that is."""
        with self._lock:
            number = self._numbers[name]
            self._numbers[name] += 1
        coordination_client().key_value_set(_key(name, number, jax.process_index()), "null")


_STORE = _Store()


def _key(name: str, number: int, worker: int) -> str:
    return f"replicax/{name}/{number}/{worker}"


def _received(client: Any, key: str, deadline: float) -> str | None:
    """What a worker sent, or None if it has not yet."""
    wait = max(0.001, min(_SLICE_SECONDS, deadline - time.monotonic()))
    try:
        text: str = client.blocking_key_value_get(key, max(1, int(1000 * wait)))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return None
        raise from_exception(error) from error
    return text


def _is_there(client: Any, key: str) -> bool:
    try:
        client.key_value_try_get(key)
    except jax.errors.JaxRuntimeError:  # NOT_FOUND
        return False
    return True


def _too_late(client: Any, name: str, number: int, seconds: float) -> CollectiveTimeoutError:
    workers = range(jax.process_count())
    came = [_is_there(client, _key(name, number, worker)) for worker in workers]
    missing = ", ".join(str(worker) for worker in workers if not came[worker])
    rows = [(worker, "came" if came[worker] else "did not come") for worker in workers]
    return CollectiveTimeoutError(
        describe(
            f"Worker {missing or '?'} did not come to the meeting {name!r} within {seconds:g} s.",
            table=Table(("worker", "state"), rows),
            why="All workers must make the same calls in the same order. Most often one failed, "
            "or left a call out because it stands under a condition such as `if is_chief:`.",
            fix="Look at what the missing worker does; make the call on every worker.",
        )
    )
