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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replicax import errors
from replicax.step._access import FunctionTrace, surrounding_trace
from replicax.step._arguments import parameter_names
from replicax.step._sources import BatchSource, Feed, OtherBatches, Wanted
from replicax.values import current_frame

if TYPE_CHECKING:
    from replicax.step._function import Function

_MOST_BATCHES = 64


@dataclass(frozen=True)
class Given:
    """What one call has taken.

    Attributes:
        wanted: What the batches are for.
        named: The batches, as named arguments of the fed function.
        put_back: Gives them back.
        ended: The error of an iterator that had no more, or None.
        place: Which batches these are, for messages; empty where that says nothing.
    """

    wanted: tuple[Wanted, ...]
    named: dict[str, Any]
    put_back: Callable[[], None]
    ended: errors.OutOfRangeError | None = None
    place: str = ""


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
            taken = self._take(sources)
            function = self._fed(taken.wanted, tuple(sources))
            self._here.sources = sources
            try:
                if use is None:
                    return function(*args, **rest, **taken.named)
                result = use(function, *args, **rest, **taken.named)
            except OtherBatches as other:
                taken.put_back()
                if taken.ended is not None and len(other.wanted) > len(taken.wanted):
                    raise taken.ended from None
                self._wanted = _checked(other.wanted, self._function.__name__)
            except Exception as error:
                self._failed(function, taken, error)
                raise
            else:
                taken.put_back()
                return result
            finally:
                self._here.sources = {}

    def _take(self, sources: Mapping[str, BatchSource]) -> Given:
        """The batches of a call."""
        taken, ended = take_all(self._wanted, sources)
        return Given(
            # With other arguments than last time, what there is may be enough.
            wanted=self._wanted[: len(taken)],
            named={_name(i): one[0] for i, (_, one) in enumerate(taken)},
            put_back=lambda: put_back(taken),
            ended=ended,
        )

    def _failed(self, function: Function, taken: Given, error: Exception) -> None:
        """A call has raised."""

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
        signature = self._signature(names)

        @functools.wraps(fn)
        def fed(*args: Any, **kwargs: Any) -> Any:
            batches = [kwargs.pop(_name(i)) for i in range(len(wanted))]
            trace = trace_here()
            return self._step(trace, wanted, signature.bind(*args, **kwargs).arguments, batches)

        fed.__signature__ = signature  # type: ignore[attr-defined]
        return fed

    def _step(
        self,
        trace: FunctionTrace,
        wanted: tuple[Wanted, ...],
        given: Mapping[str, Any],
        batches: Sequence[Any],
    ) -> Any:
        """What the user's function returns for these arguments, by name, and batches."""
        fn, sources = self._function.fn, self._here.sources
        whole = inspect.signature(fn)
        feed = trace.feed = Feed(wanted, batches, sources)
        given = {**given, **sources}
        in_order = {name: given[name] for name in whole.parameters if name in given}
        bound = inspect.BoundArguments(whole, in_order)
        result = fn(*bound.args, **bound.kwargs)
        feed.finish()
        return result

    def _signature(self, names: tuple[str, ...]) -> inspect.Signature:
        """The signature of the function without its iterators.

        Raises:
            ArgumentTypeError: One of them has no parameter with its name.
        """
        whole = inspect.signature(self._function.fn)
        unknown = [name for name in names if name not in whole.parameters]
        if unknown:
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"An iterator was passed to `{self._function.__name__}` as `{unknown[0]}`.",
                    fix="Give the iterator a parameter with a name of its own.",
                )
            )
        return whole.replace(
            parameters=[p for p in whole.parameters.values() if p.name not in names]
        )


def trace_here() -> FunctionTrace:
    """The trace of the function that is being traced."""
    frame = current_frame()
    trace = surrounding_trace(frame.access if frame is not None else None)
    if trace is None:
        raise errors.InternalError("No function is being traced.")
    return trace


def _name(number: int) -> str:
    return f"<batch {number}>"


def take_all(
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
        put_back(taken)
        raise
    return taken, None


def put_back(taken: Sequence[tuple[BatchSource, tuple[Any, ...]]]) -> None:
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
