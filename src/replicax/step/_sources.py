"""What a compiled step takes batches from, and how a trace asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

from replicax import errors
from replicax.step._access import FunctionTrace


class BatchRun(Protocol):
    """Batches that follow each other and have one structure and one shape.

    Attributes:
        count: How many.
        steps: The numbers of their steps, and that of the step after.
    """

    count: int
    steps: Sequence[int]

    def placed(self) -> Any:
        """All of them on the devices: the tree with `PerReplica` leaves `[n, count, B, ...]`."""

    def part(self, first: int, last: int, stride: int = 1) -> Self:
        """Every `stride`-th batch from `first` to the one before `last`."""

    def joined(self, other: Self) -> Self | None:
        """With those that follow; None if they are others in structure or shape."""


class BatchSource:
    """An iterator of batches that a compiled step can take from."""

    def take(self, *, is_optional: bool) -> tuple[Any, ...]:
        """A batch as `(batch, ...)`, where what follows the batch tells its place.

        Args:
            is_optional: Whether the end is `(None,)` instead of an error.
        """
        raise NotImplementedError

    def put_back(self, taken: tuple[Any, ...]) -> None:
        """Give the same batch again at the next call; the latest is put back first."""
        raise NotImplementedError

    def take_runs(self, count: int, *, is_placed: bool) -> list[BatchRun]:
        """The next `count` batches, or as many as are left.

        Args:
            count: The same in each call, so that the next ones can be made ready ahead.
            is_placed: Whether they are needed on the devices as they come.
        """
        raise NotImplementedError

    def put_back_runs(self, runs: Sequence[BatchRun]) -> None:
        """Give the batches of `take_runs`, or the last of them, again."""
        raise NotImplementedError


class Wanted(NamedTuple):
    """One batch that a step takes: the name of the parameter that is its source, or the source."""

    source: str | BatchSource
    is_optional: bool


class OtherBatches(BaseException):
    """A trace takes other batches than it was given: a signal, which no user's code may catch."""

    def __init__(self, wanted: tuple[Wanted, ...]) -> None:
        super().__init__("the function must be traced anew with other batches")
        self.wanted = wanted


class Feed:
    """The batches of one trace.

    Args:
        wanted: Where they come from.
        batches: The batches, traced.
        names: The parameters that are sources.
    """

    def __init__(
        self,
        wanted: tuple[Wanted, ...] = (),
        batches: Sequence[Any] = (),
        names: Mapping[str, BatchSource] | None = None,
    ) -> None:
        self._wanted, self._batches, self._taken = wanted, batches, 0
        self._names = {id(source): name for name, source in (names or {}).items()}

    def take(self, source: BatchSource, *, is_optional: bool) -> Any:
        """The next batch, if it is one of this source; None for the end."""
        at = self._taken
        one = Wanted(self._names.get(id(source), source), is_optional)
        if self._wanted[at : at + 1] != (one,):
            raise OtherBatches((*self._wanted[:at], one))
        self._taken += 1
        return self._batches[at]

    def finish(self) -> None:
        """Find out that batches were left over."""
        if self._taken < len(self._wanted):
            raise OtherBatches(self._wanted[: self._taken])


def take_in_step(trace: FunctionTrace, source: BatchSource, *, is_optional: bool) -> Any:
    """A batch for the step that is being traced, another one in each call; None for the end.

    Raises:
        ContextError: Inside of `lax.scan`, `jax.grad` or another transformation.
    """
    if not (trace.taking or trace).is_here:
        raise errors.ContextError(
            errors.describe(
                "A batch was taken inside of a transformed function, such as the body of "
                "`lax.scan` or a loss given to `jax.grad`.",
                why="JAX traces the body once, whatever the number of its runs.",
                fix="Take the batch before, in the `rx.function`.",
            )
        )
    feed = trace.feed if isinstance(trace.feed, Feed) else Feed()
    return feed.take(source, is_optional=is_optional)


def has_sources(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument is an iterator of batches."""
    return any(isinstance(value, BatchSource) for value in (*args, *kwargs.values()))
