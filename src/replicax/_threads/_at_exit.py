"""Work of threads that must not be under way when Python ends."""

from __future__ import annotations

import atexit
import threading

from replicax import errors

_PATIENCE_S = 5.0


class Work:
    """Enter it around each piece of work of a thread.

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
                        "A dataset was to be read in a thread while Python ends.",
                        fix="Take batches before the end of the program, or read without threads: "
                        "`rx.InputOptions(prefetch=0)`, and no `.prefetch` and `num_parallel=`.",
                    )
                )
            self._under_way += 1

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._under_way -= 1
            if self._has_ended:
                self._condition.notify_all()

    def end(self) -> None:
        """Wait for work that is under way, but not for ever: a source may be stuck."""
        with self._condition:
            self._has_ended = True
            self._condition.wait_for(lambda: self._under_way == 0, timeout=_PATIENCE_S)


WORK = Work()
atexit.register(WORK.end)
