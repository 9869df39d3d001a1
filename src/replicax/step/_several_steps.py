"""`rx.function(steps_per_execution=k)`: a call runs several steps, each on a batch of its own.

The batches of all steps are placed together, as arrays `[num_replicas, steps, B, ...]`, and the
program is a loop over them (`_loop`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from replicax import errors
from replicax.step._feeding import FedFunction, Given, put_back, take_all, trace_here
from replicax.step._loop import Loop
from replicax.step._sources import BatchRun, BatchSource, Wanted
from replicax.step._state import check_is_no_state
from replicax.values import PerReplica

if TYPE_CHECKING:
    from replicax.step._function import Function

_RUNS, _ONE = "<batches>", "<batches of one step>"

_Taken = list[tuple[BatchSource, list[BatchRun]]]


class SeveralSteps(FedFunction):
    """The calls of an `rx.function` that run several steps each.

    Args:
        function: The function.
        make: Makes the `rx.function` that gets the batches as arguments.
        donate: The parameters that are donated: what they are given goes from step to step.
        steps: How many steps a call runs, at most.
    """

    def __init__(
        self,
        function: Function,
        make: Callable[[Callable[..., Any]], Function],
        donate: Sequence[str],
        steps: int,
    ) -> None:
        super().__init__(function, make)
        self._donate, self._steps = tuple(donate), steps

    def _take(self, sources: Mapping[str, BatchSource]) -> Given:
        wanted = self._wanted
        if any(isinstance(one.source, str) and one.source not in sources for one in wanted):
            wanted = ()  # It was called with other iterators than now.
        if not wanted:
            return Given((), {_RUNS: ()}, lambda: None)
        of_each = [sources[w.source] if isinstance(w.source, str) else w.source for w in wanted]
        taken = self._take_runs(of_each)
        counts = [sum(run.count for run in runs) // of_each.count(x) for x, runs in taken]
        steps = min(counts)
        if steps == 0:
            _put_back(taken)
            return self._take_end(wanted, sources)
        for source, runs in taken:
            _give_back_more_than(steps * of_each.count(source), source, runs)
        return Given(
            wanted,
            {_RUNS: _segments(of_each, dict(taken), steps)},
            put_back=lambda: _put_back(taken),
            place=self._place(taken, steps),
        )

    def _take_runs(self, of_each: Sequence[BatchSource]) -> _Taken:
        taken: _Taken = []
        try:
            for source in dict.fromkeys(of_each):
                each = of_each.count(source)
                runs = source.take_runs(self._steps * each, is_placed=each == 1)
                taken.append((source, runs))
        except BaseException:
            _put_back(taken)
            raise
        return taken

    def _take_end(self, wanted: tuple[Wanted, ...], sources: Mapping[str, BatchSource]) -> Given:
        """Where an iterator has no batch for a step: what one step gets, or its error."""
        taken, ended = take_all(wanted, sources)
        return Given(
            wanted=wanted[: len(taken)],
            named={_ONE: tuple(one[0] for _, one in taken)},
            put_back=lambda: put_back(taken),
            ended=ended,
        )

    def _place(self, taken: _Taken, steps: int) -> str:
        _, runs = taken[0]
        return (
            f"This call of `{self._function.__name__}` is for {steps} steps: batches "
            f"{runs[0].steps[0]} to {runs[-1].steps[-1] - 1}."
        )

    def _failed(self, function: Function, taken: Given, error: Exception) -> None:
        """Where nothing was run, go back before the batches of all its steps."""
        if taken.place:
            error.add_note(taken.place)
        if not function.calls_back:
            taken.put_back()

    def _with_batches(
        self, wanted: tuple[Wanted, ...], names: tuple[str, ...]
    ) -> Callable[..., Any]:
        """The Python function with the batches of all steps in the place of its iterators."""
        signature = self._signature(names)

        @functools.wraps(self._function.fn)
        def fed(*args: Any, **kwargs: Any) -> Any:
            runs, one = kwargs.pop(_RUNS, ()), kwargs.pop(_ONE, None)
            if one is not None:
                runs = (jax.tree.map(lambda x: x[:, None], one),)
            given = signature.bind(*args, **kwargs).arguments
            trace = trace_here()
            donated = [name for name in signature.parameters if name in self._donate]
            state = {name: given[name] for name in donated if name in given}

            def step(state: dict[str, Any], batches: Sequence[Any]) -> Any:
                result = self._step(trace, wanted, {**given, **state}, batches)
                if not wanted:
                    self._check_no_batches({x: given[x] for x in given if x not in state})
                return result

            def check(result: Any) -> None:
                others = {name: x for name, x in given.items() if name not in state}
                order = [] if state else list(signature.parameters)
                check_is_no_state(others, order, result, self._function.__name__)

            loop = Loop(trace, step, state, check, self._function.__name__)
            if not runs:
                loop.run((), self._steps)
            for batches in runs:
                loop.run(batches, _count_of(batches))
            return loop.result()

        fed.__signature__ = signature  # type: ignore[attr-defined]
        return fed

    def _check_no_batches(self, given: Mapping[str, Any]) -> None:
        """Refuse a batch as an argument: each step would get the same one.

        Raises:
            InvalidArgumentError: An argument that goes to all steps is an array.
        """
        for name, value in given.items():
            leaves = jax.tree.leaves(value, is_leaf=lambda x: isinstance(x, PerReplica))
            if any(isinstance(x, PerReplica) or getattr(x, "ndim", 0) for x in leaves):
                raise errors.InvalidArgumentError(
                    errors.describe(
                        f"`{self._function.__name__}` takes no batch from an iterator, and "
                        f"`{name}` would be the same in all its {self._steps} steps.",
                        why=f"It was made with steps_per_execution={self._steps}: one call runs "
                        "so many steps, and each takes a batch of its own.",
                        fix="Pass `batches = iter(dataset)` and call `batches.get_next()` in the "
                        "function; name what goes from step to step in `donate=`; or leave "
                        "`steps_per_execution` out.",
                    )
                )


def checked_steps(steps: Any) -> int:
    """The number of steps of an execution.

    Raises:
        InvalidArgumentError: It is no positive integer.
    """
    if isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1:
        return steps
    raise errors.InvalidArgumentError(
        errors.describe(
            f"`steps_per_execution` = {steps!r} is no positive integer.",
            fix="Pass how many steps a call runs, such as 50.",
        )
    )


def called_inside(function: str, steps: int) -> errors.ContextError:
    """The error of calling the function where its Python code alone would run."""
    return errors.ContextError(
        errors.describe(
            f"`{function}` was called inside of another `rx.function` or replica function.",
            why=f"It was made with steps_per_execution={steps}, and runs so many steps when it is "
            "called from outside only.",
            fix="Call it outside; inside, call its Python function, which is one step.",
        )
    )


def _put_back(taken: _Taken) -> None:
    for source, runs in reversed(taken):
        source.put_back_runs(runs)


def _give_back_more_than(count: int, source: BatchSource, runs: list[BatchRun]) -> None:
    """Put back what another iterator has no batches for, and shorten `runs`."""
    more: list[BatchRun] = []
    left = sum(run.count for run in runs) - count
    while left:
        last = runs.pop()
        kept = max(0, last.count - left)
        if kept:
            runs.append(last.part(0, kept))
            last = last.part(kept, last.count)
        left -= last.count
        more.insert(0, last)
    if more:
        source.put_back_runs(more)


def _segments(
    of_each: Sequence[BatchSource], taken: Mapping[BatchSource, Sequence[BatchRun]], steps: int
) -> tuple[tuple[Any, ...], ...]:
    """The batches of all steps, placed: for each stretch of steps with batches of one form.

    Args:
        of_each: For each batch of a step its source.
        taken: The runs of each source.
        steps: How many steps.
    """
    # For each batch of a step: the run that it is in, its place there, and the stride of a step.
    columns: list[list[tuple[BatchRun, int]]] = []
    strides = [of_each.count(source) for source in of_each]
    for i, source in enumerate(of_each):
        places = [(run, at) for run in _merged(taken[source]) for at in range(run.count)]
        columns.append(places[of_each[:i].count(source) :: strides[i]][:steps])
    segments = []
    first = 0
    for step in range(1, steps + 1):
        if step < steps and all(column[step][0] is column[first][0] for column in columns):
            continue
        segments.append(
            tuple(
                column[first][0].part(column[first][1], column[step - 1][1] + 1, stride).placed()
                for column, stride in zip(columns, strides, strict=True)
            )
        )
        first = step
    return tuple(segments)


def _merged(runs: Sequence[BatchRun]) -> list[BatchRun]:
    """Runs of one form become one."""
    merged: list[BatchRun] = []
    for run in runs:
        both = merged[-1].joined(run) if merged else None
        merged[-1:] = [both] if both is not None else [*merged[-1:], run]
    return merged


def _count_of(batches: Sequence[Any]) -> int:
    """The number of steps that batches `[num_replicas, steps, B, ...]` are for."""
    leaves = jax.tree.leaves(batches)
    return leaves[0].shape[1] if leaves else 1
