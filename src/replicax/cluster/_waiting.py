"""Calls that block in native code, made in a helper thread so that a failure can end the wait."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

_Result = TypeVar("_Result")

_LOOK_S = 0.05

_left_alone: list[threading.Thread] = []


def call_elsewhere(call: Callable[[], _Result], check: Callable[[], None]) -> _Result:
    """Makes a call in a thread of its own, and looks for a failure until it is done.

    For threads that no signal can reach, and for calls that listen to none.

    Args:
        call: May block for ever.
        check: Raises the failure, if there is one. The helper is left alone then.

    Returns:
        What the call returns.

    Raises:
        Exception: What the call or `check` raises.
    """
    done: queue.SimpleQueue[Callable[[], _Result]] = queue.SimpleQueue()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.put(functools.partial(_raise, error))
        else:
            done.put(lambda: result)

    thread = threading.Thread(target=run, name="replicax-wait", daemon=True)
    thread.start()
    while True:
        try:
            outcome = done.get(timeout=_LOOK_S)
        except queue.Empty:
            try:
                check()
            except BaseException:
                _left_alone.append(thread)
                raise
        else:
            return outcome()


def let_return(seconds: float) -> None:
    """Waits for helpers that were left alone and are on their way back.

    A thread that comes back from native code while the interpreter ends would abort the process.
    """
    deadline = time.monotonic() + seconds
    while _left_alone:
        _left_alone.pop().join(max(0.0, deadline - time.monotonic()))


def _raise(error: BaseException) -> NoReturn:
    raise error
