"""Errors: canonical status codes, the exception tree, origins and the form of a message.

Each class is also the Python class in brackets, so `except ValueError` keeps working. The
number is the status code.

    ReplicaxError (Exception) 2
    ├── CancelledError (RuntimeError) 1
    ├── UnknownError (RuntimeError) 2
    ├── InvalidArgumentError (ValueError) 3
    │   ├── ArgumentTypeError (TypeError) 3
    │   ├── StructureMismatchError 3
    │   ├── UnknownDeviceError 3
    │   └── CollectiveMismatchError 3 -> drawn below
    ├── DeadlineExceededError (TimeoutError) 4
    │   └── CollectiveTimeoutError 4
    ├── NotFoundError (LookupError) 5
    ├── AlreadyExistsError (RuntimeError) 6
    ├── PermissionDeniedError (RuntimeError) 7
    ├── UnauthenticatedError (RuntimeError) 16
    ├── ResourceExhaustedError (RuntimeError) 8
    ├── FailedPreconditionError (RuntimeError) 9
    │   ├── ContextError 9
    │   ├── MixedStrategiesError 9
    │   ├── DevicesStartedError 9
    │   ├── StartupError 9
    │   ├── VerificationError 9
    │   └── ReplicaDivergenceError 9
    │       ├── VaryingWriteError 9
    │       ├── VaryingControlFlowError 9
    │       ├── UnusedMaskError 9
    │       └── CollectiveMismatchError 3
    ├── AbortedError (RuntimeError) 10
    │   └── PreemptedError 10
    ├── OutOfRangeError (RuntimeError) 11
    ├── UnimplementedError (NotImplementedError) 12
    │   └── UnprovenError 12
    ├── InternalError (RuntimeError) 13
    ├── UnavailableError (RuntimeError) 14
    │   └── WorkerFailedError 14
    └── DataLossError (RuntimeError) 15
"""

from __future__ import annotations

from ._code import Code as Code
from ._convert import error_class as error_class
from ._convert import from_exception as from_exception
from ._describe import Table as Table
from ._describe import describe as describe
from ._origin import CallSite as CallSite
from ._origin import Origin as Origin
from ._origin import call_site as call_site
from ._origin import is_user_file as is_user_file
from ._origin import site_of_thread as site_of_thread
from ._origin import site_of_traceback as site_of_traceback
from ._remote import worker_failed as worker_failed
from ._tree import AbortedError as AbortedError
from ._tree import AlreadyExistsError as AlreadyExistsError
from ._tree import ArgumentTypeError as ArgumentTypeError
from ._tree import CancelledError as CancelledError
from ._tree import CollectiveMismatchError as CollectiveMismatchError
from ._tree import CollectiveTimeoutError as CollectiveTimeoutError
from ._tree import ContextError as ContextError
from ._tree import DataLossError as DataLossError
from ._tree import DeadlineExceededError as DeadlineExceededError
from ._tree import DevicesStartedError as DevicesStartedError
from ._tree import FailedPreconditionError as FailedPreconditionError
from ._tree import InternalError as InternalError
from ._tree import InvalidArgumentError as InvalidArgumentError
from ._tree import MixedStrategiesError as MixedStrategiesError
from ._tree import NotFoundError as NotFoundError
from ._tree import OutOfRangeError as OutOfRangeError
from ._tree import PermissionDeniedError as PermissionDeniedError
from ._tree import PreemptedError as PreemptedError
from ._tree import ReplicaDivergenceError as ReplicaDivergenceError
from ._tree import ReplicaxError as ReplicaxError
from ._tree import ResourceExhaustedError as ResourceExhaustedError
from ._tree import StartupError as StartupError
from ._tree import StructureMismatchError as StructureMismatchError
from ._tree import UnauthenticatedError as UnauthenticatedError
from ._tree import UnavailableError as UnavailableError
from ._tree import UnimplementedError as UnimplementedError
from ._tree import UnknownDeviceError as UnknownDeviceError
from ._tree import UnknownError as UnknownError
from ._tree import UnprovenError as UnprovenError
from ._tree import UnusedMaskError as UnusedMaskError
from ._tree import VaryingControlFlowError as VaryingControlFlowError
from ._tree import VaryingWriteError as VaryingWriteError
from ._tree import VerificationError as VerificationError
from ._tree import WorkerFailedError as WorkerFailedError

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "ArgumentTypeError",
    "CallSite",
    "CancelledError",
    "Code",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "ContextError",
    "DataLossError",
    "DeadlineExceededError",
    "DevicesStartedError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "MixedStrategiesError",
    "NotFoundError",
    "Origin",
    "OutOfRangeError",
    "PermissionDeniedError",
    "PreemptedError",
    "ReplicaDivergenceError",
    "ReplicaxError",
    "ResourceExhaustedError",
    "StartupError",
    "StructureMismatchError",
    "Table",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownDeviceError",
    "UnknownError",
    "UnprovenError",
    "UnusedMaskError",
    "VaryingControlFlowError",
    "VaryingWriteError",
    "VerificationError",
    "WorkerFailedError",
    "call_site",
    "describe",
    "error_class",
    "from_exception",
    "is_user_file",
    "site_of_thread",
    "site_of_traceback",
    "worker_failed",
]

# Tracebacks and pickles name the public path, wherever a class is written.
for _name in __all__:
    _public = globals()[_name]
    if isinstance(_public, type) and issubclass(_public, ReplicaxError):
        _public.__module__ = __name__
del _name, _public
