"""A record on demand: SIGUSR1."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from ._dump import snapshot, write_or_log


def dump_on_signal() -> bool:
    """From now on, SIGUSR1 has this process write its record. Context: any.

    The handler runs in the main thread, at its next line of Python or wait of jax. Under
    `replicax run` it is there from the start. A handler of the program's own is left alone.

    Returns:
        Whether it was set: False outside of the main thread, or where there is another handler.

    Examples:
        >>> dump_on_signal(), dump_on_signal()
        (True, True)
        >>> ignore_signal()
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGUSR1) not in (signal.SIG_DFL, _on_signal):
        return False
    signal.signal(signal.SIGUSR1, _on_signal)
    return True


def ignore_signal() -> None:
    """Takes `dump_on_signal` back, if its handler is still there."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGUSR1) is _on_signal:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def _on_signal(_number: int, frame: FrameType | None) -> None:
    write_or_log(snapshot("SIGUSR1", frame=frame))
