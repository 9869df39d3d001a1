"""What the workers write: whole lines with the rank before them, and files as they are."""

from __future__ import annotations

import collections
import os
import selectors
import threading
import time
from typing import IO, BinaryIO, Protocol, TextIO

TICK_S = 0.2
PROGRESS_S = 1.0
"""How often a line that overwrites itself, such as a progress bar, is shown."""
LONGEST_LINE = 64 * 1024
TAIL_LINES = 200
LAST_WORDS_S = 1.0
"""How long output is read on after the workers have ended: a leftover process may hold the pipe."""


class Lines:
    r"""Cuts a stream into lines. A carriage return overwrites, as in a terminal.

    Examples:
        >>> lines = Lines()
        >>> lines.feed(b"one\ntw"), lines.feed(b"o\n"), lines.rest()
        ([b'one'], [b'two'], [])
        >>> lines.feed(b" 10%\r 20%\rdone\n")
        [b'done']
    """

    def __init__(self) -> None:
        self._pending = b""
        self._shown = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *whole, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > LONGEST_LINE:
            whole.append(self._pending)
            self._pending = b""
        return [_as_shown(line) for line in whole]

    def progress(self) -> list[bytes]:
        """The latest state of a line that overwrites itself, if it has changed."""
        done, returned, _ = self._pending.rpartition(b"\r")
        state = _as_shown(done) if returned else b""
        if not state or state == self._shown:
            return []
        self._shown = state
        return [state]

    def rest(self) -> list[bytes]:
        """A last line without an end."""
        rest, self._pending = self._pending, b""
        return [_as_shown(rest)] if rest else []


def _as_shown(line: bytes) -> bytes:
    """What a terminal would show of a line: the part behind the last carriage return."""
    parts = [part for part in line.split(b"\r") if part]
    return parts[-1] if parts else b""


class Console(Protocol):
    """What lines are shown on."""

    def write(self, data: bytes, /) -> object:
        """Shows bytes."""

    def flush(self) -> object:
        """Shows them now."""


class _TextConsole:
    """A console that takes text alone, such as a notebook's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        """Shows bytes as text."""
        self._stream.write(data.decode(errors="replace"))

    def flush(self) -> None:
        """Shows them now."""
        self._stream.flush()


def console_of(stream: TextIO) -> Console:
    """What shows bytes on `sys.stdout` or `sys.stderr`, whatever stands there."""
    return getattr(stream, "buffer", None) or _TextConsole(stream)


class Stream:
    """One stream of one worker.

    Args:
        rank: The worker.
        pipe: What it writes to.
        console: Where its lines go, with the rank before them; None shows none.
        file: Where its bytes go as they are.

    Attributes:
        over: Set once the stream has ended.
        tail: Its last lines.
    """

    def __init__(
        self, rank: int, pipe: IO[bytes], console: Console | None, file: BinaryIO | None
    ) -> None:
        self.pipe = pipe
        self.over = threading.Event()
        self.tail: collections.deque[bytes] = collections.deque(maxlen=TAIL_LINES)
        self._prefix = f"[{rank}] ".encode()
        self._console, self._file = console, file
        self._lines = Lines()

    def read(self) -> bool:
        """Takes what is there; False at the end of the stream."""
        data = os.read(self.pipe.fileno(), LONGEST_LINE)
        if self._file is not None and data:
            self._file.write(data)
            self._file.flush()
        lines = self._lines.feed(data) if data else self._lines.rest()
        self.tail.extend(lines)
        self._show(lines)
        if not data:
            self.over.set()
        return bool(data)

    def tick(self) -> None:
        """Shows a progress bar."""
        self._show(self._lines.progress())

    def close(self) -> None:
        """Shows what is left, and closes the ends."""
        rest = self._lines.rest()
        self.tail.extend(rest)
        self._show(rest)
        self.pipe.close()
        if self._file is not None:
            self._file.close()

    def _show(self, lines: list[bytes]) -> None:
        if self._console is None or not lines:
            return
        try:
            self._console.write(b"".join(self._prefix + line + b"\n" for line in lines))
            self._console.flush()
        except (OSError, ValueError):  # nobody reads it any more; the workers go on
            self._console = None


class OutputPump:
    """Reads all streams in one thread, so that no two lines are ever mixed."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._over: float | None = None
        self._thread = threading.Thread(target=self._run, name="replicax-output", daemon=True)
        self._streams: list[Stream] = []

    def add(self, stream: Stream) -> None:
        """Takes a stream, before the start."""
        self._streams.append(stream)
        self._selector.register(stream.pipe, selectors.EVENT_READ, stream)

    def start(self) -> None:
        """Starts to read."""
        self._thread.start()

    def finish(self) -> None:
        """Reads what is left, and ends. The workers have ended before."""
        self._over = time.monotonic() + LAST_WORDS_S
        if self._thread.is_alive():
            self._thread.join()
        for stream in self._streams:
            stream.close()
        self._selector.close()

    def _run(self) -> None:
        next_progress = time.monotonic() + PROGRESS_S
        while self._selector.get_map():
            for key, _ in self._selector.select(TICK_S):
                if not key.data.read():
                    self._selector.unregister(key.fileobj)
            now = time.monotonic()
            if self._over is not None and now > self._over:
                return
            if now > next_progress:
                next_progress = now + PROGRESS_S
                for stream in self._streams:
                    stream.tick()
