"""The master of a job: it hosts JAX's coordination service and the control channel."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from replicax.errors import FailedPreconditionError, StartupError, describe

from ._addresses import join_address, split_address
from ._coordination import CoordinationService
from ._failure import Failure
from ._handshake import check_secret
from ._job import Job
from ._server import ControlServer
from ._timeouts import Timeouts

_Result = TypeVar("_Result")

TICK_S = 0.05
PING_TICKS = 8


class Master:
    """Watches the workers of a job, and tells all of them of the first failure.

    It lives in the launcher, or in a child process of worker 0 where something else starts the
    workers; never in a worker, whose death must not take it along. The control channel runs in a
    thread of this process, the coordination service in a child process. All methods may be called
    from any thread.

    Args:
        world_size: Number of workers.
        secret: What the workers prove to know before anything they send is read.
        host: Address to listen on.
        port: Port of the control channel; 0 takes a free one.
        coordinator_port: Port of JAX's coordination service; 0 takes a free one, None hosts none.
        timeouts: How long to wait for what.

    Raises:
        InvalidArgumentError: The secret has fewer than 8 bytes.

    Examples:
        >>> master = Master(world_size=2, secret=b"a secret of the job", timeouts=Timeouts())
        >>> master.first_failure is None, master.all_left()
        (True, False)
    """

    def __init__(
        self,
        *,
        world_size: int,
        secret: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        coordinator_port: int | None = 0,
        timeouts: Timeouts,
    ) -> None:
        self.world_size = world_size
        self._host, self._port, self._coordinator_port = host, port, coordinator_port
        self._timeouts = timeouts
        self._job = Job(world_size, timeouts, time.monotonic)
        self._server = ControlServer(check_secret(secret), self._job)
        self._service: CoordinationService | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening = threading.Event()
        self._error: OSError | None = None
        self._stopping = False

    def start(self) -> None:
        """Starts to listen; both addresses are known when it returns.

        Raises:
            StartupError: An address cannot be bound.
        """
        if self._coordinator_port is not None:
            self._service = CoordinationService(
                self._host, self._coordinator_port, self.world_size, self._timeouts.shutdown
            )
            self._job.coordinator_port = split_address(self._service.address)[1]
        self._thread = threading.Thread(target=self._run, name="replicax-master", daemon=True)
        self._thread.start()
        self._listening.wait()
        if self._error is not None:
            self.stop()
            raise StartupError(
                describe(
                    f"The control channel cannot listen on {self._host}:{self._port}: "
                    f"{self._error}.",
                    fix="pass another port, or 0 for a free one.",
                )
            ) from self._error

    @property
    def address(self) -> str:
        """`host:port` of the control channel."""
        if self._thread is None:
            raise _not_started()
        return join_address(self._host, self._port)

    @property
    def coordinator_address(self) -> str:
        """`host:port` of JAX's coordination service."""
        if self._service is None:
            raise _not_started()
        return self._service.address

    @property
    def first_failure(self) -> Failure | None:
        """The first failure of the job, or None so far."""
        return self._job.first_failure

    @property
    def job(self) -> str:
        """What tells the job from others, in the name of the folder for its records."""
        return self._job.name

    @property
    def preempted_at(self) -> int | None:
        """How many calls all had made when they saved and left, or None if they did not."""
        return self._job.preempted_at

    def worker_exited(self, rank: int, returncode: int) -> None:
        """Told by who started the worker: its process has ended (negative: by that signal)."""
        self._in_loop(lambda: self._job.exited(rank, returncode))

    def report(self, rank: int | None, record: Failure | Mapping[str, Any]) -> None:
        """Declares a failure from outside, such as an agent's on another host.

        Raises:
            ValueError: The record names no kind of failure.
        """
        if not isinstance(record, Failure):
            record = Failure.from_json({**record, "rank": rank})
        self._in_loop(lambda: self._job.declare(record))

    def all_left(self) -> bool:
        """Whether every worker has left and closed its connection, or its process has ended.

        A worker that has said good-bye still takes leave of JAX's coordination service, which
        must be there until then; its connection ends after that.
        """
        return self._in_loop(lambda: self._job.is_over() and not self._job.anyone_connected())

    def joined(self) -> frozenset[int]:
        """The ranks of the workers that have come to the control channel so far."""
        return self._in_loop(
            lambda: frozenset(rank for rank, one in enumerate(self._job.members) if one.came)
        )

    def stop(self) -> None:
        """Ends the services. Workers that are still there are told, and waited for. Repeatable."""
        if self._thread is not None:
            self._stopping = True
            self._thread.join()
            self._thread = None
        if self._service is not None:
            self._service.stop()

    def _in_loop(self, call: Callable[[], _Result]) -> _Result:
        """Runs a call in the thread of the job, which alone touches it; here if there is none."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None or not thread.is_alive():
            return call()

        async def in_loop() -> _Result:
            return call()

        return asyncio.run_coroutine_threadsafe(in_loop(), loop).result()

    # --- the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            self._port = await self._server.listen(self._host, self._port)
        except OSError as error:
            self._error = error
            return
        finally:
            self._listening.set()
        ticks = 0
        while not self._stopping:
            await asyncio.sleep(TICK_S)
            ticks += 1
            self._job.tick()
            if ticks % PING_TICKS == 0:
                self._job.ping()
            if self._service is not None and not self._service.is_alive():
                what = "The process that hosted JAX's coordination service has ended."
                self._job.declare(Failure(rank=None, kind="lost", message=what))
        await self._say_goodbye()
        await self._server.close()

    async def _say_goodbye(self) -> None:
        if not self._job.anyone_there():
            return
        self._job.declare(Failure(rank=None, kind="exit", message="It was stopped."))
        deadline = time.monotonic() + self._timeouts.shutdown
        while self._job.anyone_there() and time.monotonic() < deadline:  # noqa: ASYNC110 - no event
            await asyncio.sleep(TICK_S)


def _not_started() -> FailedPreconditionError:
    return FailedPreconditionError(
        describe("The master does not listen there.", fix="call its start() first.")
    )
