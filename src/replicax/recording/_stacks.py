"""Where all threads of this process are."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType
from typing import Any

_MOST_FRAMES = 48
_MOST_THREADS = 64
_HERE = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - as code objects spell it


def stacks(own: FrameType | None = None) -> list[dict[str, Any]]:
    """The Python stack of each thread, the main thread first, innermost frames first.

    Args:
        own: Where this thread was, if it is in a signal handler. The names of the other threads are
            left out then: this thread may hold the lock that guards them.
    """
    known = [threading.main_thread()] if own is not None else threading.enumerate()
    names = {thread.ident: thread.name for thread in known}
    main, here = threading.main_thread().ident, threading.get_ident()
    frames = sys._current_frames()  # the documented way to see other threads
    if own is not None:
        frames[here] = own
    order = sorted(frames, key=lambda ident: (ident != main, ident))
    return [
        {
            "thread": names.get(ident, f"thread {ident}"),
            "is_main": ident == main,
            "frames": _frames(frames[ident]),
        }
        for ident in order[:_MOST_THREADS]
    ]


def _frames(frame: FrameType | None) -> list[str]:
    found: list[str] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        if found or not code.co_filename.startswith(_HERE):
            found.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}")
        frame = frame.f_back
    return found
