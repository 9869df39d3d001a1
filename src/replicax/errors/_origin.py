"""Where an error comes from: the line of user code, and the participant that ran it."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import sys
from pathlib import Path
from types import FrameType, TracebackType

# Glue of the standard library that may stand between the user's line and the library.
_GLUE_MODULES = frozenset({"concurrent.futures.thread", "contextlib", "functools", "threading"})
_LIBRARY_NAMES = frozenset({"replicax", "jax", "jaxlib"})


@dataclasses.dataclass(frozen=True)
class CallSite:
    """A line of user code.

    Attributes:
        file: Path of the source file as Python knows it, or a name such as `<stdin>`.
        line: Line number, from 1.
        function: Name of the function that the line is in.

    Examples:
        >>> print(CallSite("step.py", 12, "train_step"))
        step.py:12 in train_step
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """The line as a reader finds it: `step.py:12 in train_step`."""
        return f"{_short_path(self.file)}:{self.line} in {self.function}"


@dataclasses.dataclass(frozen=True)
class Origin:
    """The participant and the line that an error comes from. None is "not known".

    Attributes:
        job: Name of the job, such as `worker`.
        task: Index of the task in its job.
        replica: Replica id in the sync group.
        step: Number of the step, from 0.
        call_site: Line of user code.

    Examples:
        >>> Origin(job="worker", task=1, replica=3, step=20).describe()
        'job worker, task 1, replica 3, step 20'
        >>> Origin().describe()
        'an unknown place'
    """

    job: str | None = None
    task: int | None = None
    replica: int | None = None
    step: int | None = None
    call_site: CallSite | None = None

    def describe(self) -> str:
        """Says the known parts in one line."""
        named = ("job", "task", "replica", "step")
        parts = [f"{n} {getattr(self, n)}" for n in named if getattr(self, n) is not None]
        if self.call_site is not None:
            parts.append(str(self.call_site))
        return ", ".join(parts) or "an unknown place"


def call_site() -> CallSite | None:
    """Returns the innermost line of user code that led here. Context: any.

    User code is all that is outside the `replicax`, `jax` and `jaxlib` packages. Tests,
    examples, doctests and the interactive prompt are user code.

    Returns:
        The line, or None where no user code is on the stack of this thread.

    Examples:
        >>> call_site().function
        '<module>'
    """
    return _innermost(sys._getframe(1))  # the documented way to walk the stack cheaply


def site_of_thread(ident: int | None) -> CallSite | None:
    """Returns the innermost line of user code that a thread is at, or None. Context: any."""
    return _innermost(sys._current_frames().get(ident or 0))


def site_of_traceback(traceback: TracebackType | None) -> CallSite | None:
    """Returns the innermost line of user code in a traceback, or None. Context: any."""
    found = None
    while traceback is not None:
        if _is_user_code(traceback.tb_frame):
            code = traceback.tb_frame.f_code
            found = CallSite(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return found


def _innermost(frame: FrameType | None) -> CallSite | None:
    while frame is not None:
        if _is_user_code(frame):
            return CallSite(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def is_user_file(file: str) -> bool:
    """Returns whether a source file is user code, as far as its name tells. Context: any."""
    return not file.startswith(_library_prefixes()) and file not in _glue_files()


def _is_user_code(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not file.startswith(_library_prefixes()) and not _is_glue(
        file, frame.f_globals.get("__name__")
    )


@functools.cache
def _glue_files() -> frozenset[str]:
    specs = [importlib.util.find_spec(name) for name in _GLUE_MODULES]
    return frozenset(spec.origin for spec in specs if spec is not None and spec.origin)


def _is_glue(file: str, module: object) -> bool:
    """Whether a frame outside the library's folders still is none of the user's code."""
    if not isinstance(module, str):
        return False
    if file == "<string>":  # Generated methods, such as the `__init__` of a dataclass.
        return module.partition(".")[0] in _LIBRARY_NAMES
    return module in _GLUE_MODULES


@functools.cache
def _library_prefixes() -> tuple[str, ...]:
    """The folders of the library and of jax, each with a separator at its end."""
    # A code object knows its file by the same spelling as its neighbours do.
    here = call_site.__code__.co_filename
    folders = [os.path.dirname(os.path.dirname(here))]  # noqa: PTH120 - no resolving wanted.
    for name in ("jax", "jaxlib"):
        spec = importlib.util.find_spec(name)
        folders += (spec.submodule_search_locations or []) if spec is not None else []
    return (*(folder + os.sep for folder in folders), "<frozen ")


def _short_path(file: str) -> str:
    """The path below the working directory, else the file's name with one parent."""
    path = Path(file)
    if not path.is_absolute():  # Also names such as `<stdin>`.
        return file
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # Not below it, or the working directory was deleted.
        is_home = str(path.parent) == os.path.expanduser("~")  # noqa: PTH111 - never raises.
        return path.name if is_home else str(Path(*path.parts[1:][-2:]))
