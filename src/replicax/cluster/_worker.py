"""What a worker of a job answers to its watcher, its guards and the hooks of its end."""

from __future__ import annotations

import threading
from typing import Any

from replicax.errors import CollectiveTimeoutError, ReplicaxError, describe, from_exception
from replicax.recording import snapshot

from . import _compat, _engine
from ._control import Control
from ._endings import Endings
from ._escape import SIGNAL, Escape
from ._failure import Failure
from ._frames import Message
from ._gatherings import Gatherings
from ._guard import MainGuard
from ._keeping import Keeping
from ._master_process import MasterProcess
from ._notices import Notices
from ._order import ORDER
from ._relay import Relay
from ._startup import table_of
from ._timeouts import Timeouts
from ._watcher import Watcher

CULPRIT_S = 3.0
"""How long a broken collective waits for the master to say who broke it."""

ECHO_S = 1.0
"""How long a message that must arrive before this process ends is waited for."""


class Worker:
    """This process in a job, as its own parts see it; `Runtime` is what programs see.

    Attributes:
        rank: Number of this worker, from 0.
        world_size: Number of workers.
        timeouts: How long it waits for what.
        step: The step that runs, for reports of failures; `progress` sets it.
        notices: What a worker lets all others know at once.
    """

    def __init__(
        self, rank: int, world_size: int, control: Control, timeouts: Timeouts, addresses: list[str]
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeouts = timeouts
        self.step: int | None = None
        self._addresses = addresses
        self._control = control
        self._gatherings = Gatherings(control)
        self.notices = Notices(control)
        self._telling = threading.Lock()
        self._aborted = threading.Event()
        self._welcomed = threading.Event()
        self._refused: str | None = None
        self._escape = Escape(self, self._whereabouts, timeouts.shutdown)
        self._guard = self._escape.guard
        self._client: Any = None
        self._relay: Relay | None = None
        self._engine: _engine.Engine | None = None
        self._watcher = Watcher(control, self, timeouts)
        self._endings = Endings(self, self._escape.on_signal, SIGNAL)
        self._has_left = False
        self._host = ""
        self._states: list[dict[str, Any]] = []
        self._keeping = Keeping(rank, world_size)
        self._coordinator_port: int | None = None
        self._master: MasterProcess | None = None

    # --- failures ------------------------------------------------------------------------

    def check(self) -> None:
        """Raises the failure of another worker, if there is one. Context: any.

        Raises:
            WorkerFailedError: A worker, or the master, has failed.
        """
        self._escape.check()

    def compare_orders(self) -> None:
        """Raises where the workers have gone apart, if they have: all must look. Context: any.

        Raises:
            CollectiveMismatchError: The first program or meeting that differs, on each worker.
        """
        self._tell_order()
        self._aborted.wait(CULPRIT_S)
        self.check()

    def fail(self, error: BaseException) -> None:
        """Tells all workers that this one failed. Only the first failure counts. Context: any.

        An exception that ends the program does so by itself.
        """
        error = self.explain(error)
        if self._escape.failure is not None or self._escape.is_own or self._has_left:
            return
        self._escape.is_own = True
        record = Failure.of_exception(error, rank=self.rank, step=self.step)
        if self._control.send("fail", failure=record.to_json()):
            self._aborted.wait(ECHO_S)
        self._keeping.keep(snapshot("this worker failed"), record, self._states)
        self._shut_engine()

    def explain(self, error: BaseException) -> BaseException:
        """Returns the failure behind an exception of the engine, else the exception. Context: any.

        It may take some seconds until the master knows who failed.
        """
        try:
            self.after_wait(error)
        except Exception as explained:  # noqa: BLE001 - returned
            return explained
        return error

    # --- for the guard -------------------------------------------------------------------

    @property
    def main_guard(self) -> MainGuard:
        """The guard of the main thread."""
        return self._guard

    def after_wait(self, error: BaseException) -> None:
        """Raises the failure behind an exception that the engine raised in a guard."""
        if isinstance(error, ReplicaxError) or not _engine.is_trouble(error):
            return
        self._control.send("trouble", text=str(error)[-1000:])
        self._aborted.wait(CULPRIT_S)  # The master also tells where all are.
        try:
            self.check()
        except Exception as failure:
            raise failure from error
        if _engine.is_late(error):
            raise CollectiveTimeoutError(
                describe(
                    f"A collective did not end within {self.timeouts.collective:g} s on worker "
                    f"{self.rank}: {from_exception(error)}",
                    table=table_of(self._states),
                    why="all workers are alive, but one of them is late or in another program.",
                    fix="look where the others are, or raise rx.Timeouts(collective=...).",
                )
            ) from error
        raise from_exception(error) from error

    # --- for the watcher -----------------------------------------------------------------

    def beacon(self) -> bool:
        """Sends a sign of life, and what was run; returns whether to do so again soon."""
        guard = self._guard
        self._control.send("beacon", waits=guard.count, waiting=guard.depth > 0, step=self.step)
        return self._tell_order()

    def _tell_order(self) -> bool:
        with self._telling:  # What is told in another order makes no sense.
            for news in ORDER.news():
                self._control.send("order", **news)
            return ORDER.is_entering

    def heard(self, message: Message) -> None:
        """A message of the master that is no abort."""
        kind = message["kind"]
        if kind in ("gathered", "ungathered"):
            self._gatherings.heard(message)
        elif kind == "notice":
            self.notices.heard(message)
        elif kind == "refused":
            self._refused = str(message.get("why"))
            self._welcomed.set()
        elif kind == "welcome":
            self._coordinator_port = message.get("coordinator_port")
            self._keeping.begin(message.get("job"))
            self._welcomed.set()
        elif kind == "states":
            self._states = list(message["workers"])
        elif kind == "record":
            self._keeping.show(self._control, message)
        elif kind == "stalled":
            self._keeping.report(list(message["workers"]))
        elif kind == "farewell":
            self._aborted.set()
        elif kind == "left" and self._engine is not None:
            self._engine.give_up(int(message["rank"]))

    def abort(self, failure: Failure) -> None:
        """Gets every thread of this worker out of its wait."""
        is_kept = not (self._has_left or self._escape.is_own)
        record = snapshot("a worker failed")  # Before anybody gets out of a wait.
        self._escape.failure = failure
        if not self._escape.is_own and not self._has_left:
            # A failure of this very worker means that it stands still, and in no guard.
            # After a mismatch none of them may go on.
            is_own = failure.rank == self.rank or failure.kind == "mismatch"
            self._escape.abort(by_force=is_own)
            self._shut_engine()
        self._aborted.set()
        self._welcomed.set()
        self._gatherings.wake()
        if is_kept:
            self._keeping.keep(record, failure, self._states)

    def escalate(self, seconds: float) -> None:
        """Goes further where the program does not hear of the failure."""
        if not self._has_left:
            self._escape.escalate(seconds)

    def _whereabouts(self) -> str:
        step = "" if self.step is None else f", at step {self.step}"
        place = self._keeping.place
        kept = "" if place is None else f" What all did last: replicax inspect {place}"
        return f"This is worker {self.rank}{step}.{kept}"

    def forked(self) -> None:
        """Runs in a forked process, which is no worker: it must not keep the connection open."""
        self._has_left = True
        self._control.close()
        self._keeping.end()
        self._forget()

    # --- the end -------------------------------------------------------------------------

    def preempted(self, calls: int) -> None:
        """Tells that this worker leaves because it was told to, and has saved. Context: any.

        Its exit code then means no failure.
        """
        self._control.send("preempted", calls=calls)

    def leave(self) -> None:
        """Leaves the job in order. May be repeated. Not collective. Context: any.

        A program that ends does so by itself.
        """
        if not self._has_left:
            self._has_left = True
            # Who has said good-bye may lose the service; a client that is still there aborts.
            self._disconnect()
            self._tell_order()
            self._control.send("bye")
            self._aborted.wait(ECHO_S)  # For the answer; a failure has set it already.
            self._end()

    @property
    def is_failing(self) -> bool:
        """Whether this process ends because of a failure, its own or another's."""
        return self._guard.has_failed or self._escape.is_own

    def _shut_engine(self) -> None:
        if self._engine is not None:
            self._engine.shut()

    def _disconnect(self) -> None:
        """Leaves JAX's coordination service."""
        if self._engine is not None:
            self._engine.stop()
        is_cut = self._relay is not None and self._relay.is_cut
        if self._client is not None:
            _compat.disconnect_client(self._client, is_cut=is_cut)
            self._client = None
        if self._relay is not None and not is_cut:
            self._relay.close()

    def _end(self) -> None:
        """Takes down all that joining has set up."""
        self._has_left = True
        self._watcher.stop()
        self._disconnect()
        self._control.close()
        self._endings.remove()
        self._keeping.end()
        if self._master is not None:
            self._master.stop()  # Ends once all have left.
        self._forget()

    def _forget(self) -> None:
        """From now on this process is no worker."""
