"""Where the current thread is: the stack of strategies, contexts and variable access.

Everything that depends on "the current context" reads the top of this stack. It is kept for each
thread: a new thread is in no scope, as in tf.distribute.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import jax

    from replicax.errors import CallSite
    from replicax.values._mesh import ReplicaMesh
    from replicax.values._variable import Variable


class StrategyLike(Protocol):
    """What the lower floors need to know of a strategy."""

    @property
    def name(self) -> str:
        """A name for messages, such as ``MirroredStrategy#1``."""

    @property
    def replica_mesh(self) -> ReplicaMesh:
        """The devices of the replicas."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that take each step together."""


class ReplicaContextLike(Protocol):
    """What a variable needs to know of a replica context: how to combine replicas' values."""

    def all_reduce(self, op: Any, value: Any) -> Any:
        """Combine the replicas' values."""

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Give one replica's value to all."""


class VariableAccess(Protocol):
    """How variables are read and written in a context."""

    def read(self, variable: Variable) -> jax.Array:
        """The value that the context sees."""

    def store(self, variable: Variable, value: Any, call_site: CallSite | None) -> None:
        """Set the value that the context sees; shape and dtype have been checked."""


@dataclass(frozen=True)
class Frame:
    """One entered context.

    Attributes:
        strategy: The strategy in force, or None outside of any.
        replica: The replica context; None in cross-replica context.
        access: How variables are read and written; None means directly.
        merging: The replica context whose `merge_call` is being served; else None.
    """

    strategy: StrategyLike | None
    replica: ReplicaContextLike | None = None
    access: VariableAccess | None = None
    merging: ReplicaContextLike | None = None


class _Stack(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []


_STACK = _Stack()


def current_frame() -> Frame | None:
    """The innermost frame of this thread, or None outside of every scope."""
    frames = _STACK.frames
    return frames[-1] if frames else None


def depth() -> int:
    """Number of frames that this thread has entered."""
    return len(_STACK.frames)


@contextlib.contextmanager
def entered(frame: Frame) -> Iterator[Frame]:
    """Make ``frame`` the innermost one for the length of a ``with`` block."""
    frames = _STACK.frames
    frames.append(frame)
    try:
        yield frame
    finally:
        frames.pop()
