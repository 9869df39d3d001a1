"""The meeting of replicas inside one process: replica threads that take turns.

Each replica has a thread, and exactly one of them runs at a time, in replica order. A replica
keeps the turn until it meets or ends. So user code needs no locks, prints come in order, and a
debugger stops one replica while nothing moves elsewhere. When all have met, the calling thread
serves the requests, and the next round of turns begins.

    caller       |start                serve|                     |collect
    replica 0    |--> meet  .  .  .  .  .  .|--> end              |
    replica 1    |         --> meet  .  .  .|       --> end       |

The turn is a lock a replica, which the holder before it releases. A round of `n` replicas costs
`n + 1` switches of thread.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import dataclasses
import enum
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, TypeVar

from replicax._log import logger
from replicax.errors import (
    CallSite,
    ContextError,
    InternalError,
    InvalidArgumentError,
    describe,
    site_of_thread,
    site_of_traceback,
)

from ._ledger import Entry
from ._reports import (
    ReplicaReport,
    check_same_collective,
    raise_deadline_exceeded,
    raise_unequal_numbers,
)

T = TypeVar("T")

_logger = logger("collectives")

# After Ctrl-C, a replica that is inside a long call of a C library cannot be stopped. The user
# is not kept waiting for it longer than this.
_INTERRUPT_GRACE_SECONDS = 5.0

_START_GRACE_SECONDS = 0.5

_CALLER = -1


@dataclasses.dataclass(frozen=True)
class Request:
    """What a replica brings to a meeting.

    Attributes:
        entry: The collective.
        payload: Its values, in the form that `serve` knows.
    """

    entry: Entry
    payload: Any = None


class _Stop(BaseException):
    """Raised in a replica at its meeting, when the run has been stopped.

    Not an `Exception`, so that user code does not swallow it by accident.
    """


class _State(enum.Enum):
    READY = "ready"
    WAITING = "waiting"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


class _Replica(Generic[T]):
    """One replica: its thread, its turn, and what it has done."""

    def __init__(self, index: int, name: str) -> None:
        self.index = index
        self.name = name
        self.turn = threading.Lock()
        self.turn.acquire()  # Released by whoever hands the turn over.
        self.thread: threading.Thread | None = None
        self.state = _State.READY
        self.request: Request | None = None
        self.answer: Any = None
        self.result: T | None = None
        self.error: BaseException | None = None
        self.meetings = 0
        self.last_site: CallSite | None = None

    @property
    def is_alive(self) -> bool:
        return self.state in {_State.READY, _State.WAITING}

    def report(self, state: str, site: CallSite | None = None) -> ReplicaReport:
        return ReplicaReport(self.name, state, self.meetings, site or self.last_site)


class Meet:
    """The meeting place as one replica sees it. Call it from the thread of this replica.

    Attributes:
        replica: Number of the replica.
        num_replicas: How many replicas meet.
    """

    def __init__(self, run: _Run[Any], replica: int) -> None:
        self._run = run
        self.replica = replica
        self.num_replicas = len(run.replicas)

    def __call__(self, request: Request) -> Any:
        """Waits until all replicas have met, and returns this replica's answer.

        Context: replica. Collective: yes.

        Raises:
            ContextError: The run has ended, or the call comes from another thread.
        """
        return self._run.meet(self._run.replicas[self.replica], request)


class _Run(Generic[T]):
    """One call of `run_replicas`."""

    def __init__(
        self,
        names: Sequence[str],
        serve: Callable[[list[Request]], list[Any]],
        timeout_seconds: float | None,
    ) -> None:
        self.replicas: list[_Replica[T]] = [_Replica(i, name) for i, name in enumerate(names)]
        self._serve = serve
        self._timeout_seconds = timeout_seconds
        self._caller_turn = threading.Lock()
        self._caller_turn.acquire()
        # Guards the three fields below: no turn is handed over once the run is stopping.
        self._mutex = threading.Lock()
        self._stopping = False
        self._holder = _CALLER
        self._holder_since = 0.0
        self._is_stuck = False
        self._ended = False
        self._rounds = 0

    # ---- on the calling thread

    def execute(self, bodies: Sequence[Callable[[Meet], T]]) -> list[T]:
        try:
            self._start(bodies)
            self._play_round()
            while not self._conclude_round():
                self._play_round()
            for replica in self.replicas:
                self._join(replica, None)
            return [replica.result for replica in self.replicas]  # type: ignore[misc]
        except BaseException as error:
            self._stop(is_interrupt=isinstance(error, KeyboardInterrupt))
            self._note_late_errors(error)
            raise
        finally:
            self._ended = True
            for replica in self.replicas:
                replica.error = replica.answer = replica.request = None

    def _start(self, bodies: Sequence[Callable[[Meet], T]]) -> None:
        for replica, body in zip(self.replicas, bodies, strict=True):
            thread = threading.Thread(
                target=self._thread_main,
                args=(replica, body, contextvars.copy_context()),
                name=f"replicax-replica-{replica.index}",
                daemon=True,
            )
            replica.thread = thread
            thread.start()

    def _play_round(self) -> None:
        """Gives each living replica one turn, until all have met or ended, or one failed.

        Raises:
            DeadlineExceededError: One replica has kept the turn for too long.
        """
        with self._mutex:
            self._hand_over(after=_CALLER)
        if self._timeout_seconds is None:
            self._caller_turn.acquire()
            return
        # The turn wanders without waking this thread, so look at whoever holds it by now.
        while True:
            with self._mutex:
                since = self._holder_since
            left = since + self._timeout_seconds - time.monotonic()
            if self._caller_turn.acquire(timeout=max(left, 0.0)):
                return
            with self._mutex:
                self._stopping = self._holder != _CALLER and self._holder_since == since
            if self._stopping:
                self._is_stuck = True
                self._raise_stuck()

    def _conclude_round(self) -> bool:
        """Serves the requests of a round. Returns whether the replicas have all finished."""
        for replica in self.replicas:
            if replica.state is _State.FAILED:
                self._raise_failure(replica)
        waiting = [replica for replica in self.replicas if replica.state is _State.WAITING]
        if not waiting:
            return True
        if len(waiting) < len(self.replicas):
            raise_unequal_numbers([r.report(r.state.value) for r in self.replicas])
        requests = [replica.request for replica in waiting if replica.request is not None]
        entries = [request.entry for request in requests]
        check_same_collective([r.name for r in waiting], entries, self._rounds)
        answers = self._serve(requests)
        if len(answers) != len(waiting):
            raise InternalError(
                describe(f"`serve` returned {len(answers)} results for {len(waiting)} replicas.")
            )
        self._rounds += 1
        for replica, answer in zip(waiting, answers, strict=True):
            replica.answer, replica.state = answer, _State.READY
        return False

    def _raise_failure(self, replica: _Replica[T]) -> NoReturn:
        error = replica.error
        if error is None:
            raise InternalError(describe(f"{replica.name} failed without an error."))
        site = site_of_traceback(error.__traceback__)
        where = f" (at {site})" if site is not None else ""
        _add_note(error, f"raised on {replica.name} of {len(self.replicas)}{where}")
        try:
            raise error
        finally:
            del error  # Else the traceback keeps this frame, which keeps the traceback.

    def _raise_stuck(self) -> NoReturn:
        reports = []
        for replica in self.replicas:
            if replica.index == self._holder:
                ident = replica.thread.ident if replica.thread is not None else None
                reports.append(replica.report("did not arrive", site_of_thread(ident)))
            elif replica.state is _State.WAITING:
                reports.append(replica.report("arrived"))
            elif replica.state is _State.FINISHED:
                reports.append(replica.report("finished"))
            else:
                reports.append(replica.report("had no turn yet"))
        raise_deadline_exceeded(reports, self._timeout_seconds or 0.0, self._rounds)

    def _stop(self, *, is_interrupt: bool) -> None:
        """Ends all replicas, one after the other, and joins their threads."""
        with self._mutex:
            self._stopping = True
            holder = self._holder
        # Whoever runs user code ends first, so that still only one runs at a time.
        remaining = sorted(self.replicas, key=lambda replica: replica.index != holder)
        try:
            while remaining:
                replica = remaining.pop(0)
                _release(replica.turn)
                if replica.index != holder:
                    # With a time-out, a slow clean-up in user code may not block for ever.
                    self._join(replica, self._timeout_seconds)
                elif is_interrupt:
                    self._interrupt(replica)
                    self._join(replica, _INTERRUPT_GRACE_SECONDS)
                elif not self._is_stuck:
                    self._join(replica, self._timeout_seconds)
        finally:  # A second Ctrl-C: let the others end by themselves.
            for replica in remaining:
                _release(replica.turn)

    def _interrupt(self, replica: _Replica[T]) -> None:
        """Raises `_Stop` where the replica is. It would else go on to its next meeting."""
        if replica.is_alive and replica.thread is not None and replica.thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(replica.thread.ident), ctypes.py_object(_Stop)
            )

    def _join(self, replica: _Replica[T], limit_seconds: float | None) -> None:
        thread = replica.thread
        if thread is None:
            return
        # Ctrl-C may come while a thread starts. It cannot be joined before it has started.
        patience = time.monotonic() + _START_GRACE_SECONDS
        while not thread.is_alive() and thread in threading.enumerate():
            if time.monotonic() > patience:
                return
            time.sleep(0.001)
        if not thread.is_alive():
            return
        thread.join(limit_seconds)
        if thread.is_alive():
            _logger.warning(
                "%s is still inside a call at %s. It ends at its next collective.",
                replica.name,
                site_of_thread(thread.ident) or "an unknown line",
            )

    def _note_late_errors(self, first: BaseException) -> None:
        """Names errors that other replicas raised while they were stopped."""
        for replica in self.replicas:
            late = replica.error
            if late is not None and late is not first:
                _add_note(
                    first, f"while stopping, {replica.name} raised {type(late).__name__}: {late}"
                )

    # ---- on the threads of the replicas

    def _thread_main(
        self,
        replica: _Replica[T],
        body: Callable[[Meet], T],
        context: contextvars.Context,
    ) -> None:
        try:
            replica.turn.acquire()
            self._check_running()
            replica.result = context.run(body, Meet(self, replica.index))
            end = _State.FINISHED
        except _Stop:
            end = _State.STOPPED
        except BaseException as error:  # noqa: BLE001 - raised again on the calling thread.
            replica.error = error
            end = _State.FAILED
        with contextlib.suppress(_Stop), self._mutex:  # An interrupt may come as late as here.
            replica.state = end
            if not self._stopping:
                self._hand_over(after=replica.index)

    def meet(self, replica: _Replica[T], request: Request) -> Any:
        self._check_meet(replica, request)
        with self._mutex:
            self._check_running()
            replica.request = request
            replica.last_site = request.entry.call_site
            replica.meetings += 1
            replica.state = _State.WAITING
            self._hand_over(after=replica.index)
        replica.turn.acquire()
        self._check_running()
        answer, replica.answer = replica.answer, None
        return answer

    def _check_running(self) -> None:
        if self._stopping:
            raise _Stop

    def _check_meet(self, replica: _Replica[T], request: object) -> None:
        if threading.current_thread() is not replica.thread:
            what = f"A collective of {replica.name} was called "
            what += "after its run had ended." if self._ended else "from another thread."
            fix = "call collectives in the replica function itself, in no thread or callback."
            raise ContextError(describe(what, fix=fix))
        if not isinstance(request, Request):
            raise InternalError(describe(f"`request={request!r}` is no `Request`."))

    def _hand_over(self, after: int) -> None:
        """Gives the turn to the next replica of this round, or back to the caller.

        The mutex is held. A failure ends the round at once.
        """
        failed = after != _CALLER and self.replicas[after].state is _State.FAILED
        following = () if failed else self.replicas[after + 1 :]
        heir = next((r for r in following if r.state is _State.READY), None)
        if heir is None:
            self._holder = _CALLER
            self._caller_turn.release()
            return
        self._holder = heir.index
        if self._timeout_seconds is not None:
            self._holder_since = time.monotonic()
        heir.turn.release()


def run_replicas(
    bodies: Sequence[Callable[[Meet], T]],
    serve: Callable[[list[Request]], list[Any]],
    *,
    timeout_seconds: float | None = None,
    names: Sequence[str] | None = None,
) -> list[T]:
    """Runs one function a replica, in turns, and serves their meetings. Context: cross-replica.

    Each body runs on a daemon thread of its own, in a copy of the caller's context variables.
    When this function returns or raises, its threads have ended; but for a replica that is
    stuck in user code, which ends at its next meeting.

    Args:
        bodies: The function of each replica. It gets the `Meet` of its replica.
        serve: Gets the requests of all replicas, in replica order, and returns one answer a
            replica. It runs on the calling thread.
        timeout_seconds: Longest time that one replica may take from one meeting to the next.
            None waits for ever.
        names: How messages name the replicas. `replica 0`, `replica 1`, ... if None.

    Returns:
        The result of each body.

    Raises:
        InvalidArgumentError: There is no body, or not one name a body.
        CollectiveMismatchError: The replicas disagree on a collective, or on their number.
        DeadlineExceededError: A replica did not arrive in time.
        BaseException: What a body or `serve` raised, unchanged.

    Examples:
        >>> entry = Entry(1, 100, "all_reduce", "SUM", ("int32",), ((),))
        >>> def body(meet):
        ...     return meet(Request(entry, meet.replica + 1))
        >>> def serve(requests):
        ...     return [sum(request.payload for request in requests)] * len(requests)
        >>> run_replicas([body, body], serve)
        [3, 3]
    """
    names = names if names is not None else [f"replica {i}" for i in range(len(bodies))]
    if not bodies or len(names) != len(bodies):
        what = f"There are {len(bodies)} replica functions and {len(names)} names."
        fix = "pass at least one function, and one name for each."
        raise InvalidArgumentError(describe(what, fix=fix))
    return _Run[T](names, serve, timeout_seconds).execute(bodies)


def _add_note(error: BaseException, note: str) -> None:
    if note not in getattr(error, "__notes__", ()):  # The object may have been raised before.
        error.add_note(note)


def _release(turn: threading.Lock) -> None:
    """Lets a replica that waits for its turn run. Harmless where none waits."""
    with contextlib.suppress(RuntimeError):  # It is released already.
        turn.release()
