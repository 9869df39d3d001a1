"""Errors of other libraries as errors of the tree."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re

from ._code import Code
from ._describe import describe
from ._tree import (
    AbortedError,
    AlreadyExistsError,
    ArgumentTypeError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    ReplicaxError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)

_CLASSES: dict[Code, type[ReplicaxError]] = {
    cls.code: cls
    for cls in (
        CancelledError,
        UnknownError,
        InvalidArgumentError,
        DeadlineExceededError,
        NotFoundError,
        AlreadyExistsError,
        PermissionDeniedError,
        ResourceExhaustedError,
        FailedPreconditionError,
        AbortedError,
        OutOfRangeError,
        UnimplementedError,
        InternalError,
        UnavailableError,
        DataLossError,
        UnauthenticatedError,
    )
}

# The first match counts: narrower classes stand before wider ones.
_PYTHON_CLASSES: tuple[tuple[tuple[type[BaseException], ...], type[ReplicaxError]], ...] = (
    ((TimeoutError,), DeadlineExceededError),
    ((ConnectionError, EOFError), UnavailableError),
    ((MemoryError,), ResourceExhaustedError),
    ((FileNotFoundError,), NotFoundError),
    ((FileExistsError,), AlreadyExistsError),
    ((PermissionError,), PermissionDeniedError),
    ((NotImplementedError,), UnimplementedError),
    ((StopIteration, StopAsyncIteration), OutOfRangeError),
    (
        (KeyboardInterrupt, asyncio.CancelledError, concurrent.futures.CancelledError),
        CancelledError,
    ),
    ((TypeError,), ArgumentTypeError),
    ((ValueError,), InvalidArgumentError),
)

_CODE_WORD = re.compile(rf"\b({'|'.join(code.name for code in _CLASSES)}): ")
# A program that was dispatched behind a failed one repeats this text before the root cause.
_DISPATCH_CHAIN = re.compile(r"^(?:[A-Z_]+: )?Error dispatching computation:\s*")

_FIXES: dict[type[ReplicaxError], str] = {
    ResourceExhaustedError: "use a smaller global batch, or more devices.",
    UnavailableError: "look for the first error of the other workers: one of them has ended.",
    DeadlineExceededError: "look for a worker that is late, stopped, or in another program.",
}


def error_class(code: Code) -> type[ReplicaxError]:
    """Returns the exception class of a status code. Context: any.

    Args:
        code: Any code but OK.

    Raises:
        InvalidArgumentError: `code` is OK, or is no status code.

    Examples:
        >>> error_class(Code.UNAVAILABLE).__name__
        'UnavailableError'
    """
    if code not in _CLASSES:
        message = describe(
            f"There is no error class for the status code {code!r}.",
            why="only the codes 1 to 16 stand for errors.",
        )
        raise InvalidArgumentError(message)
    return _CLASSES[code]


def from_exception(error: BaseException) -> ReplicaxError:
    """Turns any exception into one of the tree. Context: any.

    A status code in the text decides (`RESOURCE_EXHAUSTED: Out of memory ...`), else the
    Python class does (`TimeoutError`, `ConnectionError`, `MemoryError`, ...), else it is an
    `UnknownError`.

    Args:
        error: An error of the XLA runtime, of the coordination service, or of Python.

    Returns:
        An error of the tree with `error` as its `__cause__`. An error that is of the tree
        already comes back unchanged.

    Examples:
        >>> mapped = from_exception(ConnectionResetError("peer closed"))
        >>> type(mapped).__name__, mapped.__cause__
        ('UnavailableError', ConnectionResetError('peer closed'))
    """
    if isinstance(error, ReplicaxError):
        return error
    text = str(error)
    cls = _class_by_text(error, text) or _class_by_type(error)
    name = type(error).__name__
    mapped = cls(describe(f"{name}: {text}" if text else name, fix=_FIXES.get(cls)))
    mapped.__cause__ = error
    return mapped


def _class_by_text(error: BaseException, text: str) -> type[ReplicaxError] | None:
    """The class that a runtime's status text asks for; None where there is no such text."""
    shorter = _DISPATCH_CHAIN.sub("", text)
    while shorter != text:
        text, shorter = shorter, _DISPATCH_CHAIN.sub("", shorter)
    first_line = text.partition("\n")[0]
    # Only the runtime's own errors carry a code behind other words; a Python error that quotes
    # a status in the middle of its text is no status.
    is_runtime = isinstance(error, RuntimeError)
    found = (_CODE_WORD.search if is_runtime else _CODE_WORD.match)(first_line)
    if found is None:
        return None
    cls = _CLASSES[Code[found[1]]]
    return (_gloo_class(first_line) or cls) if cls is UnknownError else cls


def _gloo_class(text: str) -> type[ReplicaxError] | None:
    """Gloo gives UNKNOWN for all its errors; the words say more."""
    if "Gloo" not in text:
        return None
    if "Timed out" in text:
        return DeadlineExceededError
    if any(words in text for words in ("Connection closed", "Connection reset", "refused")):
        return UnavailableError
    return None


def _class_by_type(error: BaseException) -> type[ReplicaxError]:
    for types, cls in _PYTHON_CLASSES:
        if isinstance(error, types):
            return cls
    return UnknownError
