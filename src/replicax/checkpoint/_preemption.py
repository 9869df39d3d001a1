"""A job that is told to leave: all workers save before the same call, and leave together."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from replicax import errors
from replicax._log import logger
from replicax.checkpoint._checkpoint import Checkpoint, commits
from replicax.checkpoint._restoration import RestoreStatus
from replicax.checkpoint._taken import put_back
from replicax.checkpoint._termination import TerminationConfig, TerminationSignals
from replicax.cluster import LastCall, runtime
from replicax.input import DistributedIterator

_Result = TypeVar("_Result")

_CALLS = "total_run_calls"
_SPARE_CALLS = 6
"""How many calls' time is kept for the last save of a grace period."""

_LOGGER = logger("checkpoint")
_numbers = itertools.count()
_in_use: list[PreemptionHandler] = []


class PreemptionHandler:
    """Saves and ends the job when one of its workers is told to leave, and resumes it.

    SIGTERM to any worker, at any time, is told to all. They agree on the call of `run` before which
    all of them stop, save the checkpoint together, and leave with one exit code (42). That happens
    at the next call: a long evaluation goes through `run` as well, or calls
    `save_checkpoint_if_preempted` now and then.

    It works in one process too, with any strategy, and where something else than Replicax started
    the workers. Make it before the training loop, in the main thread, on all workers; there is one
    at a time. `close`, or the end of a `with` block, puts the handler of SIGTERM back that was
    there before; until then that one is called as well.

    Context: cross-replica, or outside of every scope. Collective: yes; the checkpoint is restored.

    Args:
        checkpoint: What is saved and restored. An iterator of a distributed dataset belongs there.
        directory: Where, as for `Checkpoint.save`. If a checkpoint is there, it is restored.
        config: How the program learns that it has to leave, and how it leaves.
        keep: How many checkpoints the directory holds; see `Checkpoint.save`.

    Raises:
        FailedPreconditionError: Another one is in use, or this is not the main thread.
        ReplicaxError: What `Checkpoint.restore` raises.

    Attributes:
        status: What was restored; None where the directory held nothing.

    Examples:
        >>> import signal, tempfile
        >>> import replicax as rx
        >>> folder, state = tempfile.mkdtemp(), {"steps": 0}
        >>> def step():
        ...     state["steps"] += 1
        ...     if state["steps"] == 3:
        ...         signal.raise_signal(signal.SIGTERM)  # as a cluster's manager does
        >>> checkpoint = rx.checkpoint.Checkpoint(state=state)
        >>> stay = rx.TerminationConfig(exit_fn=lambda: None)
        >>> with rx.PreemptionHandler(checkpoint, folder, stay) as handler:
        ...     try:
        ...         while handler.total_run_calls < 5:
        ...             handler.run(step)
        ...     except rx.errors.PreemptedError:
        ...         print("saved after", handler.total_run_calls)
        saved after 3

        The next start goes on from there:

        >>> with rx.PreemptionHandler(checkpoint, folder) as handler:
        ...     while handler.total_run_calls < 5:
        ...         handler.run(step)
        >>> state["steps"]
        5
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        config: TerminationConfig | None = None,
        *,
        keep: int = 1,
    ) -> None:
        if not isinstance(checkpoint, Checkpoint):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"PreemptionHandler got checkpoint={checkpoint!r:.100}.",
                    fix="pass a replicax.checkpoint.Checkpoint.",
                )
            )
        if _in_use:
            raise errors.FailedPreconditionError(
                errors.describe(
                    "There is a PreemptionHandler already.",
                    why="SIGTERM ends the program once.",
                    fix="use it, or call its close() first.",
                )
            )
        self.status: RestoreStatus | None = None
        self._checkpoint, self._directory, self._keep = checkpoint, directory, keep
        self._config = config or TerminationConfig()
        self._restored_calls = self._calls = 0
        if commits(directory):
            self.status, notes = checkpoint._restored(directory, None)
            self._restored_calls = int(notes.get(_CALLS, 0))
        # When the last calls began.
        self._began: deque[float] = deque(maxlen=_SPARE_CALLS + 1)
        self._save_seconds = 0.0
        self._leaves_at: float | None = None
        self._topic = f"preemption/{next(_numbers)}"
        self._last_call = LastCall(f"{self._topic}/first")
        try:
            self._signals = TerminationSignals(self._config, self._told)
        except BaseException:
            self._last_call.close()
            raise
        DistributedIterator.mark()
        _in_use.append(self)

    def _told(self) -> None:
        """This worker has to leave; in a signal handler, or in a thread."""
        if self._leaves_at is None:  # In the grace period nothing is new.
            self._last_call.ask()

    @property
    def total_run_calls(self) -> int:
        """How many calls of `run` were made, those before a restart included."""
        return self._restored_calls + self._calls

    @property
    def is_preempted(self) -> bool:
        """Whether this worker knows that a worker was told to leave. The others may not yet."""
        return self._leaves_at is not None or self._last_call.is_asked

    def run(self, fn: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
        """Call a function, unless the job has to leave before. Context: any that `fn` allows.

        What was taken from an iterator of the checkpoint since the last call belongs to this one:
        if the job leaves before it, the batch is taken again after the restart.

        All workers make the same calls. An exception of `fn` is raised, and the other workers hear
        of it as of any other.

        Args:
            fn: A training step, say, or an evaluation step.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Returns:
            What `fn` returns.

        Raises:
            SystemExit: All workers have saved; the exit code is 42.
            PreemptedError: The same, and `exit_fn` of the `TerminationConfig` returned.
        """
        if self._has_to_save():
            self._leave_before_the_call()
        self._calls += 1
        try:
            return fn(*args, **kwargs)
        finally:
            DistributedIterator.mark()

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Save and leave if the job has to. Context: where `Checkpoint.save` is called.

        For loops that do not call `run`, and for places between its calls. All workers call it
        equally often; it costs a microsecond where nothing has happened.

        Args:
            args: Go to `save_fn` of the `TerminationConfig`.
            kwargs: The same.

        Raises:
            SystemExit: All workers have saved; the exit code is 42.
            PreemptedError: The same, and `exit_fn` of the `TerminationConfig` returned.
        """
        if self._has_to_save():
            self._save_at_the_end(args, kwargs)

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """A context that is one call of `run`: the job leaves before it, or not.

        Raises:
            SystemExit: All workers have saved; the exit code is 42.
            PreemptedError: The same, and `exit_fn` of the `TerminationConfig` returned.
        """
        if self._has_to_save():
            self._leave_before_the_call()
        self._calls += 1
        try:
            yield
        finally:
            DistributedIterator.mark()

    def save(self) -> None:
        """Save to the directory now, with the number of calls. Collective: yes.

        For checkpoints from time to time, which a job resumes from that was killed.
        """
        self._checkpoint._saved(self._directory, self._keep, {_CALLS: self.total_run_calls})

    # --- at the end --------------------------------------------------------------------------

    def _has_to_save(self) -> bool:
        now = time.monotonic()
        self._began.append(now)
        if self._leaves_at is not None and now > self._leaves_at - self._needed():
            self._last_call.ask()
        return self._last_call.stops_here()

    def _leave_before_the_call(self) -> None:
        with put_back(self._checkpoint):
            self._save_at_the_end((), {})

    def _save_at_the_end(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._last_call.close()
        began = time.monotonic()
        if self._config.save_fn is not None:
            self._config.save_fn(*args, **kwargs)
        else:
            self.save()
        self._save_seconds = time.monotonic() - began
        if self._leaves_at is None and self._config.grace_period:
            self._leaves_at = began + self._config.grace_period
            self._last_call = LastCall(f"{self._topic}/last")
            return
        self._leave()

    def _needed(self) -> float:
        """Seconds that some calls and a save take."""
        return self._began[-1] - self._began[0] + 2 * self._save_seconds

    def _leave(self) -> None:
        text = errors.describe(
            f"The job was told to leave. It has saved to {str(self._directory)!r} after "
            f"{self.total_run_calls} calls.",
            why="A worker got SIGTERM, or its `termination_watcher_fn` said so.",
            fix="Start it again: it resumes from there.",
        )
        worker = runtime()
        if worker is not None:
            worker.preempted(self.total_run_calls)
        if worker is None or worker.rank == 0:
            _LOGGER.warning("%s", text.partition("\n")[0])
        self._config.leave(text)

    def close(self) -> None:
        """Puts the handler of SIGTERM back that was there before. May be repeated."""
        self._signals.close()
        self._last_call.close()
        if self in _in_use:
            _in_use.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
