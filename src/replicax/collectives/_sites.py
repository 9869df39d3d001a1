"""Lines of user code in a traceback, and in the stack of another thread."""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType, TracebackType

import jax
import jaxlib

from replicax.errors import CallSite

# The standard library's glue between the user's lines and the library.
_GLUE_MODULES = frozenset({"contextlib", "functools", "threading"})


def site_of_traceback(traceback: TracebackType | None) -> CallSite | None:
    """Returns the innermost line of user code in a traceback, or None."""
    found = None
    while traceback is not None:
        if _is_user_code(traceback.tb_frame):
            code = traceback.tb_frame.f_code
            found = CallSite(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return found


def site_of_thread(ident: int | None) -> CallSite | None:
    """Returns the innermost line of user code that a thread is at, or None."""
    frame = sys._current_frames().get(ident or 0)
    while frame is not None:
        if _is_user_code(frame):
            return CallSite(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def _is_user_code(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    glue = frame.f_globals.get("__name__") in _GLUE_MODULES
    return not (glue or file.startswith(("<frozen ", *_library_folders())))


@functools.cache
def _library_folders() -> tuple[str, ...]:
    folder = os.path.dirname  # pathlib would resolve links, frames do not.
    here = site_of_traceback.__code__.co_filename
    libraries = (here, jax.__file__, jaxlib.__file__)
    roots = [folder(folder(here)), *(folder(file) for file in libraries[1:])]
    return tuple(root + os.sep for root in roots)
