"""Batches that a compiled step takes from iterators by itself: `iterator.get_next()` inside of it.

A trace sees a batch once, and every later call must see another one. So the batches that a trace
takes become arguments of the program, and each call takes them from the iterators before it runs.
Which ones is found out by tracing: a trace that asks for a batch that it was not given is
abandoned, and made anew with that batch.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from replicax import errors
from replicax.step._access import FunctionTrace, surrounding_trace
from replicax.step._arguments import parameter_names
from replicax.values import current_frame

if TYPE_CHECKING:
    from replicax.step._function import Function

_MOST_BATCHES = 64


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
    if not trace.is_here:
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


class FedFunction:
    """The calls of an `rx.function` that takes batches.

    Args:
        function: The function.
        make: Makes the `rx.function` that gets the batches as arguments.
    """

    def __init__(self, function: Function, make: Callable[[Callable[..., Any]], Function]) -> None:
        self._function, self._make = function, make
        self._wanted: tuple[Wanted, ...] = ()
        self._made: dict[tuple[Any, ...], Function] = {}
        self._here = threading.local()

    def call(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        use: Callable[..., Any] | None = None,
    ) -> Any:
        """Call the function with the batches that it takes.

        Args:
            args: Its arguments; whole ones may be iterators.
            kwargs: Its named arguments.
            use: Called with the fed function and its arguments instead; the batches are put back.

        Raises:
            OutOfRangeError: An iterator has ended. Nothing was run, and no batch is lost.
        """
        names = parameter_names(self._function.fn, len(args))
        given = {**dict(zip(names, args, strict=True)), **kwargs}
        sources = {name: x for name, x in given.items() if isinstance(x, BatchSource)}
        args = tuple(x for x in args if not isinstance(x, BatchSource))
        rest = {name: x for name, x in kwargs.items() if name not in sources}
        while True:
            taken, ended = _take_all(self._wanted, sources)
            # With other arguments than last time, what there is may be enough.
            wanted = self._wanted[: len(taken)]
            batches = {_name(i): one[0] for i, (_, one) in enumerate(taken)}
            self._here.sources = sources
            try:
                function = self._fed(wanted, tuple(sources))
                if use is None:
                    return function(*args, **rest, **batches)
                result = use(function, *args, **rest, **batches)
            except OtherBatches as other:
                _put_back(taken)
                if ended is not None and len(other.wanted) > len(taken):
                    raise ended from None
                self._wanted = _checked(other.wanted, self._function.__name__)
            else:
                _put_back(taken)
                return result
            finally:
                self._here.sources = {}

    def _fed(self, wanted: tuple[Wanted, ...], names: tuple[str, ...]) -> Function:
        key = (wanted, names)
        if key not in self._made:
            self._made[key] = self._make(self._with_batches(wanted, names))
        return self._made[key]

    def _with_batches(
        self, wanted: tuple[Wanted, ...], names: tuple[str, ...]
    ) -> Callable[..., Any]:
        """The Python function with the batches, by name, in the place of its iterators."""
        fn = self._function.fn
        whole = inspect.signature(fn)
        unknown = [name for name in names if name not in whole.parameters]
        if unknown:
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"An iterator was passed to `{self._function.__name__}` as `{unknown[0]}`.",
                    fix="Give the iterator a parameter with a name of its own.",
                )
            )
        signature = whole.replace(
            parameters=[p for p in whole.parameters.values() if p.name not in names]
        )

        @functools.wraps(fn)
        def fed(*args: Any, **kwargs: Any) -> Any:
            batches = [kwargs.pop(_name(i)) for i in range(len(wanted))]
            frame = current_frame()
            trace = surrounding_trace(frame.access if frame is not None else None)
            if trace is None:
                raise errors.InternalError("No function is being traced.")
            sources = self._here.sources
            feed = trace.feed = Feed(wanted, batches, sources)
            given = {**signature.bind(*args, **kwargs).arguments, **sources}
            in_order = {name: given[name] for name in whole.parameters if name in given}
            bound = inspect.BoundArguments(whole, in_order)
            result = fn(*bound.args, **bound.kwargs)
            feed.finish()
            return result

        fed.__signature__ = signature  # type: ignore[attr-defined]
        return fed


def _name(number: int) -> str:
    return f"<batch {number}>"


def _take_all(
    wanted: tuple[Wanted, ...], sources: Mapping[str, BatchSource]
) -> tuple[list[tuple[BatchSource, tuple[Any, ...]]], errors.OutOfRangeError | None]:
    """The batches, or those before the end of an iterator and the error of its end."""
    taken: list[tuple[BatchSource, tuple[Any, ...]]] = []
    try:
        for one in wanted:
            source = sources[one.source] if isinstance(one.source, str) else one.source
            taken.append((source, source.take(is_optional=one.is_optional)))
    except errors.OutOfRangeError as error:
        if not isinstance(one.source, str):
            error.add_note(
                "The step keeps the iterator that it found when it was traced. To go on with "
                "another one, pass the iterator to the step as an argument."
            )
        return taken, error
    except BaseException:
        _put_back(taken)
        raise
    return taken, None


def _put_back(taken: Sequence[tuple[BatchSource, tuple[Any, ...]]]) -> None:
    for source, one in reversed(taken):
        source.put_back(one)


def _checked(wanted: tuple[Wanted, ...], function: str) -> tuple[Wanted, ...]:
    if len(wanted) <= _MOST_BATCHES:
        return wanted
    raise errors.ResourceExhaustedError(
        errors.describe(
            f"`{function}` takes more than {_MOST_BATCHES} batches in one call.",
            why="A loop in an `rx.function` is unrolled, and all its batches are on the devices at "
            "once. One that waits for the end of the data would never end.",
            fix="Take one batch a call, and loop over the calls.",
        )
    )
