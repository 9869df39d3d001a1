"""Batches are split and placed on the devices while the step before them runs."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from typing import Any

from replicax import errors
from replicax.data._threads import ahead
from replicax.input._split import HostBatch
from replicax.step._jax_settings import current_settings, settings
from replicax.values import ReplicaMesh

_PATIENCE_S = 2.0


class _Work:
    """Work of threads that must not be under way when Python ends.

    Python stops its threads where they next want to run Python code; inside of JAX that aborts
    the process. So the end waits until no thread works, and later work is refused.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._under_way = 0
        self._has_ended = False

    def __enter__(self) -> None:
        with self._condition:
            if self._has_ended:
                raise errors.CancelledError(
                    errors.describe(
                        "A batch was to be placed ahead while Python ends.",
                        fix="Take batches before, or with `rx.InputOptions(prefetch=0)`.",
                    )
                )
            self._under_way += 1

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._under_way -= 1
            self._condition.notify_all()

    def end(self) -> None:
        """Wait for work that is under way, but not for long: a source may be stuck."""
        with self._condition:
            self._has_ended = True
            self._condition.wait_for(lambda: self._under_way == 0, timeout=_PATIENCE_S)


_WORK = _Work()
atexit.register(_WORK.end)


def placed_ahead(
    batches: Iterator[tuple[int, HostBatch]], mesh: ReplicaMesh, size: int
) -> Iterator[tuple[int, Any]]:
    """The batches on the devices, up to `size` of them placed in advance by a thread.

    Placing copies rows to devices and runs no program, so it cannot wait for a collective.
    Exceptions arrive in their turn.
    """
    if size == 0:
        return ((step, batch.place(mesh)) for step, batch in batches)
    return ahead(_placed_by_thread(batches, mesh, current_settings()), size)


def _placed_by_thread(
    batches: Iterator[tuple[int, HostBatch]], mesh: ReplicaMesh, jax_settings: dict[str, Any]
) -> Iterator[tuple[int, Any]]:
    """The batches on the devices, under the settings that the consumer's thread had."""
    while True:
        with _WORK, settings(jax_settings):
            found = next(batches, None)
            placed = None if found is None else (found[0], found[1].place(mesh))
        if placed is None:
            return
        yield placed
