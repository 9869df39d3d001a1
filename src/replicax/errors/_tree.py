"""The exception classes. The package's docstring draws them as a tree."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from ._code import Code
from ._origin import Origin

_Error = TypeVar("_Error", bound="ReplicaxError")


class ReplicaxError(Exception):
    """Base class of all errors that the library raises.

    Pickling and copying keep the class, the message, the origin, the notes and whatever
    else was set on the error, also for subclasses whose `__init__` takes other arguments.

    Attributes:
        message: The whole text, without the origin.
        code: The canonical status code of the class.
        origin: Where the error comes from, or None. `str()` shows it in a last line.

    Args:
        message: What happened, why, and what to do. `replicax.errors.describe` builds it.
        origin: Where the error comes from.

    Examples:
        >>> error = UnavailableError("Worker 1 is gone.", origin=Origin(job="worker", task=0))
        >>> print(error)
        Worker 1 is gone.
        Where: job worker, task 0
        >>> error.code.name
        'UNAVAILABLE'
    """

    code: ClassVar[Code] = Code.UNKNOWN

    def __init__(self, message: str, *, origin: Origin | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.origin = origin

    def __str__(self) -> str:
        """The message, and a last line with the origin where it is known."""
        if self.origin is None:
            return self.message
        return f"{self.message}\nWhere: {self.origin.describe()}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Takes the error apart for pickle and copy."""
        state = dict(self.__dict__)
        if "__notes__" in state:  # A copy must not share its list of notes.
            state["__notes__"] = list(state["__notes__"])
        return _rebuild, (type(self), self.args), state


def _rebuild(cls: type[_Error], args: tuple[Any, ...]) -> _Error:
    """Makes an error without `__init__`: a subclass may take other arguments."""
    error = cls.__new__(cls)
    error.args = args
    return error


# One class for each status code.


class CancelledError(ReplicaxError, RuntimeError):
    """The operation was cancelled, for example because the job shuts down."""

    code = Code.CANCELLED


class UnknownError(ReplicaxError, RuntimeError):
    """An error without a known status code, such as a Python exception of a remote worker."""

    code = Code.UNKNOWN


class InvalidArgumentError(ReplicaxError, ValueError):
    """An argument is wrong, whatever the state of the system."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceededError(ReplicaxError, TimeoutError):
    """A collective, a barrier or a call did not end within its time-out."""

    code = Code.DEADLINE_EXCEEDED


class NotFoundError(ReplicaxError, LookupError):
    """A file, a key or a checkpoint is not there."""

    code = Code.NOT_FOUND


class AlreadyExistsError(ReplicaxError, RuntimeError):
    """A key or a file that was to be made is there already."""

    code = Code.ALREADY_EXISTS


class PermissionDeniedError(ReplicaxError, RuntimeError):
    """The caller may not do this."""

    code = Code.PERMISSION_DENIED


class UnauthenticatedError(ReplicaxError, RuntimeError):
    """The caller did not prove who it is."""

    code = Code.UNAUTHENTICATED


class ResourceExhaustedError(ReplicaxError, RuntimeError):
    """Memory, disk space or another resource ran out."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPreconditionError(ReplicaxError, RuntimeError):
    """The system is not in the state that the operation needs."""

    code = Code.FAILED_PRECONDITION


class AbortedError(ReplicaxError, RuntimeError):
    """The operation was given up, for example because a task was restarted or preempted."""

    code = Code.ABORTED


class OutOfRangeError(ReplicaxError, RuntimeError):
    """The end was passed, for example the end of a dataset."""

    code = Code.OUT_OF_RANGE


class UnimplementedError(ReplicaxError, NotImplementedError):
    """The operation is not supported here."""

    code = Code.UNIMPLEMENTED


class InternalError(ReplicaxError, RuntimeError):
    """A rule that the library or the runtime relies on is broken."""

    code = Code.INTERNAL


class UnavailableError(ReplicaxError, RuntimeError):
    """A participant cannot be reached. It may have ended."""

    code = Code.UNAVAILABLE


class DataLossError(ReplicaxError, RuntimeError):
    """Data is lost or damaged."""

    code = Code.DATA_LOSS


# Narrower classes.


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument has the wrong type."""


class StructureMismatchError(InvalidArgumentError):
    """Two pytrees that must have the same structure differ."""


class UnknownDeviceError(InvalidArgumentError):
    """A device is named that is not there."""


class ContextError(FailedPreconditionError):
    """Something was called in the wrong context, such as a collective outside a replica."""


class MixedStrategiesError(FailedPreconditionError):
    """Objects of two strategies met."""


class DevicesStartedError(FailedPreconditionError):
    """A setting that must come before the first use of jax came after it."""


class ReplicaDivergenceError(FailedPreconditionError):
    """Replicas differ where they must be equal."""


class VaryingWriteError(ReplicaDivergenceError):
    """A mirrored variable or state was written with a varying value."""


class VaryingControlFlowError(ReplicaDivergenceError):
    """A collective or a Python branch stands under control flow that varies."""


class UnusedMaskError(ReplicaDivergenceError):
    """Padding of a remainder would count: it was combined with real rows without the mask."""


class CollectiveMismatchError(ReplicaDivergenceError, InvalidArgumentError):
    """Replicas disagree on a collective: its op, shape, dtype, number or function."""

    code = Code.INVALID_ARGUMENT


class WorkerFailedError(UnavailableError):
    """Another worker of the job failed first, and this one stopped waiting for it.

    Where the other worker raised an exception whose class is also found here, the error is an
    instance of that class too, so `except KeyError` catches a remote `KeyError`.

    Attributes:
        kind: How it failed: `exception` (it raised), `signal` (it was killed), `exit` (it left
            early), `lost` (its connection broke), `frozen` (no sign of life), `stall` (its Python
            code stood still while others waited) or `never came`.
        remote_traceback: The traceback of the other worker, where it raised.

    Examples:
        >>> error = WorkerFailedError("Worker 1 was killed.", origin=Origin(task=1), kind="signal")
        >>> error.kind, error.origin.task, error.remote_traceback
        ('signal', 1, None)
    """

    def __init__(
        self,
        message: str,
        *,
        origin: Origin | None = None,
        kind: str = "lost",
        remote_traceback: str | None = None,
    ) -> None:
        super().__init__(message, origin=origin)
        self.kind = kind
        self.remote_traceback = remote_traceback


class CollectiveTimeoutError(DeadlineExceededError):
    """A collective did not end within its time-out: some worker is late, or in another one."""


class StartupError(FailedPreconditionError):
    """The workers of a job could not start together: one is missing, or they do not match."""


class VerificationError(FailedPreconditionError):
    """A check of `rx.verify` has failed."""


class PreemptedError(AbortedError):
    """The job was told to leave, and has saved what it had to save."""


class UnprovenError(UnimplementedError):
    """The proof cannot be made: an unknown primitive, or a leaked tracer."""
