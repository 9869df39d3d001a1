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

_given_up: list[threading.Thread] = []
"""Helpers that nobody waits for any more, perhaps still in native code."""


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

    helper = threading.Thread(target=run, name="replicax-wait", daemon=True)
    _given_up.append(helper)
    helper.start()
    while True:
        try:
            outcome = done.get(timeout=_LOOK_S)
        except queue.Empty:
            check()
        else:
            _given_up.remove(helper)
            return outcome()


def have_returned(seconds: float) -> bool:
    """Waits until the calls that were given up are back, and says whether all are.

    A thread that comes back from native code while the interpreter ends takes the whole process
    with it: Python ends the thread there, and C++ does not let it.

    Args:
        seconds: How long to wait for all of them.
    """
    deadline = time.monotonic() + seconds
    for helper in _given_up:
        helper.join(max(deadline - time.monotonic(), 0))
    return not any(helper.is_alive() for helper in _given_up)


def _raise(error: BaseException) -> NoReturn:
    raise error
