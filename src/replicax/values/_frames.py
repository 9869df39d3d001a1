"""Where the current thread is: the stack of strategies, contexts and variable access.

Everything that depends on "the current context" reads the top of this stack. It is kept for each
thread: a new thread is in no scope, as in tf.distribute.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import jax

    from replicax.errors import CallSite
    from replicax.values._kinds import VariableAggregation
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

    @property
    def parameter_device(self) -> jax.Device | None:
        """The device that holds the variables, or None if each replica's does."""


class ReplicaContextLike(Protocol):
    """What a variable needs to know of a replica context: how to combine replicas' values."""

    def all_reduce(self, op: Any, value: Any, options: Any = None) -> Any:
        """Combine the replicas' values."""

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Give one replica's value to all."""

    def create_variable(self, make: Callable[[], Variable], facts: dict[str, Any]) -> Variable:
        """Create one variable for all replicas, which `facts` describe."""


class MergingContextLike(Protocol):
    """What a variable needs to know of a replica context whose merge call is being served."""

    def combine_copies(self, aggregation: VariableAggregation, local: Any) -> Any:
        """One value from the replicas' copies of a sync-on-read variable."""

    def own_copy(self, copies: Any) -> Any:
        """This replica's row of copies ``[num_replicas, ...]``."""


class VariableAccess(Protocol):
    """How the states of variables are read and written in a context.

    The state of a mirrored variable is its value. That of a sync-on-read variable is its copies
    ``[num_replicas, ...]``, or one replica's copy where the access `is_local`.
    """

    @property
    def is_local(self) -> bool:
        """Whether states are those of one replica."""

    def read(self, variable: Variable) -> jax.Array:
        """The state that the context sees."""

    def store(self, variable: Variable, state: Any, call_site: CallSite | None) -> None:
        """Set the state that the context sees; shape and dtype have been checked."""

    def create(self, make: Callable[[], Variable]) -> Variable:
        """Create a variable while the context is in force."""


@dataclass(frozen=True)
class Frame:
    """One entered context.

    Attributes:
        strategy: The strategy in force, or None outside of any.
        replica: The replica context; None in cross-replica context.
        access: How variables are read and written; None means directly.
        merging: The replica context whose `merge_call` is being served; else None.
        updating: Whether `extended.update` runs: variables are seen one copy at a time.
        agreed: Whether all workers agreed before on what is written here, and need not meet.
    """

    strategy: StrategyLike | None
    replica: ReplicaContextLike | None = None
    access: VariableAccess | None = None
    merging: Any = None
    updating: bool = False
    agreed: bool = False

    @property
    def sees_one_copy(self) -> bool:
        """Whether reads and writes of variables are those of one replica."""
        return self.replica is not None or self.updating


class _Stack(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []


STACK = _Stack()
"""The frames of this thread, innermost last."""

FrameHook = Callable[[Frame], contextlib.AbstractContextManager[Any]]
_HOOKS: list[FrameHook] = []


def register_frame_hook(hook: FrameHook) -> None:
    """Have what ``hook`` returns for a frame entered with each frame from now on, and left before.

    A model library lets its own state follow the context in this way.
    """
    _HOOKS.append(hook)


def current_frame() -> Frame | None:
    """The innermost frame of this thread, or None outside of every scope."""
    frames = STACK.frames
    return frames[-1] if frames else None


def depth() -> int:
    """Number of frames that this thread has entered."""
    return len(STACK.frames)


@contextlib.contextmanager
def entered(frame: Frame) -> Iterator[Frame]:
    """Make ``frame`` the innermost one for the length of a ``with`` block."""
    frames = STACK.frames
    frames.append(frame)
    try:
        if not _HOOKS:
            yield frame
            return
        with contextlib.ExitStack() as stack:
            for hook in _HOOKS:
                stack.enter_context(hook(frame))
            yield frame
    finally:
        frames.pop()
