"""Iterators over the steps of a distributed dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from replicax import errors
from replicax.input._agreed import AgreedFeed
from replicax.input._ahead import Batches, placed_ahead, placed_together
from replicax.input._optional import OptionalBatch
from replicax.input._positions import cannot_go_back, check_same_source, is_state
from replicax.input._runs import Run, RunLength
from replicax.input._sources import Distributed
from replicax.input._words import counted
from replicax.step import BatchSource, surrounding_trace, take_in_step
from replicax.values import Frame, current_frame

if TYPE_CHECKING:
    from replicax.input._distributed import DistributedDataset
    from replicax.input._plan import InputPlan

_mark = [0]

# A batch and the run of it alone; both None at the end.
_Taken = tuple[Any, Run | None]


class DistributedIterator(Distributed, BatchSource):
    """One pass over a `DistributedDataset`; `iter(dataset)` makes it.

    Batches are split and placed on the devices by a thread that runs ahead of the step, as far as
    `rx.InputOptions(prefetch=...)` says. The thread ends with the iterator.

    Inside an `rx.function`, `next`, `get_next` and `get_next_as_optional` give the step another
    batch in each call: the batches are taken before the compiled program runs. Pass the iterator
    to the step as an argument, so that the next epoch's iterator can take its place. At the end the
    call raises `OutOfRangeError`, and nothing was run. A `for` loop over batches stands outside.

    Context: outside of replica functions.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> dataset = strategy.distribute_dataset([np.ones(4), np.ones(3)])
        >>> @rx.function
        ... def count(iterator):
        ...     def replica_fn(rows):
        ...         return rx.get_replica_context().global_sum(rows)
        ...     return strategy.run(replica_fn, args=(iterator.get_next(),))
        >>> batches = iter(dataset)
        >>> float(count(batches)), float(count(batches))
        (4.0, 3.0)
    """

    def __init__(self, dataset: DistributedDataset, epoch: int, step: int) -> None:
        self._dataset = dataset
        self._epoch, self._step = epoch, step
        self._batches: Batches | None = None
        self._is_closed = self._has_ended = False
        self._mark, self._marked_step = -1, step

    @property
    def plan(self) -> InputPlan | None:
        """Which replica reads which rows at which step; None if only each pipeline knows."""
        return self._dataset.plan

    # -- taking batches ------------------------------------------------------

    def __iter__(self) -> DistributedIterator:
        require_outside("iterated")
        return self

    def __next__(self) -> Any:
        frame = current_frame()
        if frame is not None and (trace := step_being_traced(frame, "asked for its next batch")):
            return take_in_step(trace, self, is_optional=False)
        return self._next()

    def _next(self) -> Any:
        return self._take_run().first()

    def _take_run(self) -> Run:
        """The run of one batch."""
        if self._is_closed:
            raise StopIteration
        if self._mark != _mark[0]:
            self._note_mark()
        batches = self._batches
        if batches is None:
            batches = self._batches = self._opened(1, is_placed=True)
        try:
            run = batches.take()
            if run.count > 1:
                batches.put_back(run.part(1, run.count))
                run = run.part(0, 1)
        except StopIteration:
            self._note_end()
            raise
        except BaseException as error:
            self._recover(error)
            raise
        self._step = self._dataset._shared_position = run.steps[-1]
        return run

    def take_runs(self, count: int, *, is_placed: bool) -> list[Run]:  # type: ignore[override]
        """The next `count` batches, or as many as are left, in runs."""
        if self._is_closed:
            return []
        if self._mark != _mark[0]:
            self._note_mark()
        if self._batches is None:
            self._batches = self._opened(count, is_placed=is_placed)
        try:
            self._batches.make_runs(count, is_placed=is_placed)
            taken = self._batches.take_up_to(count)
        except BaseException as error:
            self._recover(error)
            raise
        if taken:
            self._step = self._dataset._shared_position = taken[-1].steps[-1]
        else:
            self._note_end()
        return taken

    def put_back_runs(self, runs: Sequence[Run]) -> None:  # type: ignore[override]
        """Go back before runs that `take_runs` gave."""
        for run in reversed(runs):
            if self._batches is not None:  # Else they are read again.
                self._batches.put_back(run)
            self._step = self._dataset._shared_position = run.steps[0]

    def _note_mark(self) -> None:
        self._mark, self._marked_step = _mark[0], self._step

    def _note_end(self) -> None:
        self._has_ended = True
        self._dataset._used_up = self._dataset._feed.is_once

    def get_next(self) -> Any:
        """The next batch.

        Raises:
            OutOfRangeError: The pass has ended.
        """
        try:
            return next(self)
        except StopIteration:
            raise self._ended() from None

    def _ended(self) -> errors.OutOfRangeError:
        return errors.OutOfRangeError(
            errors.describe(
                f"The dataset has ended: epoch {self._epoch} has {counted(self._step, 'step')}.",
                fix="Use a `for` loop, `get_next_as_optional()`, or a new iterator.",
            )
        )

    def get_next_as_optional(self) -> OptionalBatch:
        """The next batch, or an `OptionalBatch` without value at the end of the pass.

        Inside an `rx.function`, `has_value()` is a Python bool: the end is another program.
        """
        frame = current_frame()
        if frame is not None and (trace := step_being_traced(frame, "asked for its next batch")):
            batch = take_in_step(trace, self, is_optional=True)
            return OptionalBatch() if batch is None else OptionalBatch((batch,))
        try:
            return OptionalBatch((self._next(),))
        except StopIteration:
            return OptionalBatch()

    def take(self, *, is_optional: bool) -> _Taken:
        """The next batch and the run of it alone; None at the end."""
        try:
            run = self._take_run()
        except StopIteration:
            if is_optional:
                return None, None
            raise self._ended() from None
        return run.first(), run

    def put_back(self, taken: _Taken) -> None:
        """Go back before a batch that `take` gave."""
        if taken[1] is not None:
            self.put_back_runs([taken[1]])

    def close(self) -> None:
        """End the pass and its thread; batches that were placed ahead are dropped."""
        self._is_closed = True
        self._drop()

    def _opened(self, size: int, *, is_placed: bool) -> Batches:
        dataset = self._dataset
        if dataset._feed.is_once and dataset._shared is not None:
            return dataset._shared
        feed, mesh, prefetch = dataset._feed, dataset._mesh, dataset._options.prefetch
        length = RunLength(size, is_placed=is_placed)
        if isinstance(feed, AgreedFeed):
            batches = placed_together(feed, self._epoch, self._step, mesh, prefetch, length)
        else:
            ahead = -(-prefetch // size)  # in runs
            read = feed.read(self._epoch, self._step)
            batches = placed_ahead(read, self._step, mesh, ahead, length)
        if dataset._feed.is_once:  # What the thread has taken must not be lost with an iterator.
            dataset._shared = batches
        return batches

    def _recover(self, error: BaseException) -> None:
        """After an error, or Ctrl-C, the next call asks for the same step again.

        A generator that was stopped would look like the end of the data. What can be read only once
        goes on where a thread was not concerned, as by Ctrl-C; else it fails again.
        """
        dataset, self._batches = self._dataset, None
        goes_on = dataset._shared is not None and dataset._shared.goes_on
        if dataset._feed.is_once and not goes_on:
            dataset._shared = Batches(_failed(error), RunLength(1, is_placed=True))

    def _drop(self) -> None:
        # Collecting the generator ends its thread, unless the dataset keeps it for another pass.
        self._batches = None

    # -- the place in the dataset ------------------------------------------------

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        return self._epoch

    @property
    def step(self) -> int:
        """Number of the next global batch of the epoch, from 0.

        Batches that `remainder="drop"` leaves out as a whole count, too.
        """
        return self._step

    @staticmethod
    def mark() -> None:
        """Mark where all iterators are now; see `step_at_mark`."""
        _mark[0] += 1

    @property
    def step_at_mark(self) -> int:
        """`step` at the last mark, though batches may have been taken since."""
        return self._marked_step if self._mark == _mark[0] else self._step

    @property
    def was_followed(self) -> bool:
        """Whether it has ended and a later pass over its dataset has begun."""
        return self._has_ended and self._dataset._next_epoch > self._epoch + 1

    def get_state(self) -> dict[str, Any]:
        """The place in the dataset, as a dict that can be written as JSON.

        It tells what was taken with `next`, not what was placed ahead. It does not depend on the
        number of replicas.
        """
        return {
            "epoch": self._epoch,
            "step": self._step,
            "source": self._dataset._feed.source_facts(),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Make sure that `set_state` can go there; nothing is changed.

        Raises:
            InvalidArgumentError: It is no state, or one of another dataset.
            FailedPreconditionError: The source can be read only once, and was read further.
        """
        if not is_state(state):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"No state of an iterator: {state!r:.200}",
                    fix="Pass what `iterator.get_state()` returned.",
                )
            )
        dataset, step = self._dataset, state["step"]
        check_same_source(state["source"], dataset._feed.source_facts())
        is_open = dataset._feed.is_once and dataset._shared is not None
        if is_open and step != dataset._shared_position:
            raise cannot_go_back(step, dataset._shared_position)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to a place that `get_state` told, here or in another process.

        The passes after this one are the epochs after that of the state.

        Args:
            state: What `get_state` returned, on any number of replicas.

        Raises:
            InvalidArgumentError: It is no such state, or one of another dataset.
            FailedPreconditionError: The source can be read only once, and was read further.
        """
        self.check_state(state)
        epoch, step = state["epoch"], state["step"]
        dataset = self._dataset
        if dataset._feed.is_once:
            dataset._shared_position = step
        self._drop()
        self._is_closed = self._has_ended = False
        self._epoch, self._step, self._mark = epoch, step, -1
        dataset._next_epoch = epoch + 1

    def __repr__(self) -> str:
        return f"<DistributedIterator at step {self._step} of epoch {self._epoch}>"


def require_outside(doing: str) -> None:
    """Refuse what would be done once for many steps.

    Raises:
        ContextError: In replica context, or inside `rx.function`.
    """
    frame = current_frame()
    if frame is not None and step_being_traced(frame, doing) is not None:
        raise errors.ContextError(
            errors.describe(
                f"A distributed dataset was {doing} inside `rx.function`.",
                why="The function is traced once, and the number of its batches would be that of "
                "the first time.",
                fix="Loop outside: `for batch in dataset: step(batch)`; or pass `iter(dataset)` to "
                "the step, which may call `iterator.get_next()`.",
            )
        )


def step_being_traced(frame: Frame, doing: str) -> Any:
    """The trace of the `rx.function` that runs, or None outside of one.

    Raises:
        ContextError: In replica context.
    """
    if frame.replica is not None:
        raise errors.ContextError(
            errors.describe(
                f"A distributed dataset was {doing} in replica context.",
                fix="Take the batch outside and pass it in: "
                "`strategy.run(replica_fn, args=(batch,))`.",
            )
        )
    return surrounding_trace(frame.access)


def _failed(error: BaseException) -> Iterator[Any]:
    if isinstance(error, Exception):
        raise error.with_traceback(None)
    raise errors.DataLossError(
        errors.describe(
            f"The pass over the dataset was interrupted before: {error!r}",
            why="Its source is an iterator, and rows may have been taken from it.",
            fix="Distribute something that can be iterated again, or a new iterator.",
        )
    )
    yield
