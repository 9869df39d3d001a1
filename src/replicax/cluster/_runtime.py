"""A worker's side of the job: how it joins, tells that it is alive, and gets out of waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax

from replicax.errors import (
    CollectiveTimeoutError,
    ReplicaxError,
    StartupError,
    describe,
    from_exception,
)

from . import _compat, _engine, _startup
from ._addresses import join_address, split_address
from ._control import Control
from ._endings import Endings
from ._escape import SIGNAL, Escape
from ._failure import Failure
from ._frames import Message
from ._gatherings import Gatherings
from ._guard import OtherGuard
from ._master_process import MasterProcess
from ._relay import Relay, without_proxy
from ._timeouts import Timeouts
from ._waiting import call_elsewhere
from ._watcher import Watcher

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)

CULPRIT_S = 3.0
"""How long a broken collective waits for the master to say who broke it."""

ECHO_S = 1.0
"""How long a message that must arrive before this process ends is waited for."""

_current: Runtime | None = None


class Runtime:
    """This process as one worker of a job. One a process; `Runtime.join` makes it.

    Attributes:
        rank: Number of this worker, from 0.
        world_size: Number of workers.
        timeouts: How long it waits for what.
        step: The step that runs, for reports of failures; `progress` sets it.
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
        self._coordinator_port: int | None = None
        self._master: MasterProcess | None = None

    # --- joining -------------------------------------------------------------------------

    @classmethod
    def join(
        cls,
        rank: int,
        world_size: int,
        control_address: str,
        coordinator_address: str | None,
        secret: bytes,
        timeouts: Timeouts,
        *,
        addresses: Sequence[str] | None = None,
    ) -> Runtime:
        """Joins the job, meets all other workers, and starts jax's devices. Collective.

        Args:
            rank: Number of this worker, from 0.
            world_size: Number of workers.
            control_address: `host:port` of the master's control channel.
            coordinator_address: `host:port` of JAX's coordination service. None: on the host of
                the control channel, at the port that the master names.
            secret: The secret of the job.
            timeouts: How long to wait for what.
            addresses: Where each worker was expected, for messages; equal on all workers.

        Raises:
            DevicesStartedError: jax's devices were used before.
            FailedPreconditionError: This process is a worker already.
            StartupError: A worker did not come in time, or the workers do not match.
            WorkerFailedError: A worker failed meanwhile.
        """
        global _current  # noqa: PLW0603 - a process is one worker
        _startup.check_that_nothing_started()
        deadline = time.monotonic() + timeouts.start
        control = Control.connect(control_address, secret, world_size, deadline, timeouts.beacon)
        worker = cls(rank, world_size, control, timeouts, list(addresses or []))
        worker._host = split_address(control_address)[0]
        _current = worker
        try:
            worker._start(coordinator_address)
        except BaseException as error:
            worker.fail(error)
            worker._end()
            raise
        return worker

    @classmethod
    def join_without_launcher(
        cls,
        rank: int,
        world_size: int,
        address: str,
        secret: bytes,
        timeouts: Timeouts,
        *,
        addresses: Sequence[str] | None = None,
    ) -> Runtime:
        """Joins a job that nothing of ours has launched: worker 0 starts the master. Collective.

        For Slurm, Kubernetes and whatever else starts the workers. The master is a child process
        of worker 0 that outlives it long enough to tell the others.

        Args:
            rank: Number of this worker, from 0.
            world_size: Number of workers.
            address: `host:port` on worker 0's host, as the others reach it; for the control
                channel. JAX's coordination service takes a free port there.
            secret: The secret of the job.
            timeouts: How long to wait for what.
            addresses: Where each worker was expected, for messages; equal on all workers.

        Raises:
            DevicesStartedError: jax's devices were used before.
            FailedPreconditionError: This process is a worker already.
            StartupError: A worker did not come in time, or the workers do not match.
            WorkerFailedError: A worker failed meanwhile.
        """
        _startup.check_that_nothing_started()
        master = None
        if rank == 0:
            host, port = split_address(address)
            master = MasterProcess(
                world_size=world_size, secret=secret, host=host, port=port, timeouts=timeouts
            )
        try:
            worker = cls.join(
                rank, world_size, address, None, secret, timeouts, addresses=addresses
            )
        except BaseException:
            if master is not None:
                master.stop()
            raise
        worker._master = master
        return worker

    def _start(self, coordinator_address: str | None) -> None:
        self._endings.install()
        self._control.send("hello", **_startup.hello(self.rank, self.world_size, self._addresses))
        self._watcher.start()
        with self._guard:
            self._welcomed.wait(self.timeouts.start)
        if self._refused is not None:
            raise StartupError(describe(f"The master refused worker {self.rank}: {self._refused}"))
        seconds = self.timeouts.start
        facts = _startup.facts(self._addresses)
        _startup.compare(self.gather("start/programs", facts, timeout=seconds))
        _engine.limit_waits(self.timeouts.collective)
        address = coordinator_address or join_address(self._host, self._coordinator_port or 0)
        self._relay = Relay(address)
        meeting = self._relay.address
        with without_proxy():
            self._client = self._call(
                lambda: _compat.connect_client(meeting, self.rank, self.world_size, seconds)
            )
        self._engine = _engine.Engine(self._client, self._control.fileno())
        self._engine.start()
        self.gather("start/connected", None, timeout=seconds)
        devices = self._call(_startup.devices)
        _startup.compare_devices(self.gather("start/devices", devices, timeout=seconds))

    def _call(self, call: Callable[[], _Result]) -> _Result:
        """Makes a call of jax that waits for the others and listens to no signal."""
        with self.guard():
            return call_elsewhere(call, self.check)

    # --- for the program -----------------------------------------------------------------

    def guard(self) -> AbstractContextManager[None]:
        """A context for a blocking wait: a failure elsewhere raises in it. Context: any.

        In the main thread a signal ends the wait, in `block_until_ready` and its like within
        milliseconds. In other threads the wait ends with the engine's sockets; see `wait`.

        Raises:
            WorkerFailedError: At entry, inside or at the end, once another worker has failed.
            CollectiveTimeoutError: The engine gave up waiting, and nobody has failed.

        Examples:
            >>> with runtime.guard():  # doctest: +SKIP
            ...     loss = step(batch).block_until_ready()
        """
        return self._guard if self._escape.is_main() else OtherGuard(self)

    def wait(self, value: Any) -> Any:
        """Waits for the arrays of a pytree under the guard, and returns it. Context: any.

        In other threads than the main one it waits in a helper thread, so that a failure
        elsewhere raises there as soon.

        Raises:
            WorkerFailedError: Another worker has failed.
            CollectiveTimeoutError: The engine gave up waiting, and nobody has failed.
        """
        if not self._escape.is_main():
            with OtherGuard(self):
                call_elsewhere(lambda: jax.block_until_ready(value), self.check)
            return value
        guard = self._guard  # Entered without calls; see `MainGuard`.
        guard.count += 1
        guard.depth += 1
        try:
            if guard.has_failed:
                self.check()
            # An array is waited for without a look at its class, which jax does in Python.
            block = getattr(value, "block_until_ready", None)
            if block is None:
                jax.block_until_ready(value)
            else:
                block()
        except Exception as error:
            self.after_wait(error)
            raise
        finally:
            guard.depth -= 1
        return value

    def gather(self, name: str, data: Any, *, timeout: float | None = None) -> list[Any]:
        """Hands `data` (JSON, up to 1 MiB) to all workers. Collective.

        Args:
            name: Names the meeting: the n-th call with a name meets the n-th call elsewhere.
            data: What this worker brings.
            timeout: Seconds from the first worker's call; `timeouts.collective` if None.

        Returns:
            What each worker brought, by rank.

        Raises:
            WorkerFailedError: A worker failed.
            CollectiveTimeoutError: A worker did not come in time, or has left; the message names
                it.
            InvalidArgumentError: `data` is not JSON, or too long.
        """
        seconds = self.timeouts.collective if timeout is None else timeout
        with self.guard():
            return self._gatherings.gather(name, data, seconds, self.check)

    def progress(self, step: int) -> None:
        """Notes the step that runs, for reports of failures. Costs no message. Context: any."""
        self.step = int(step)

    def check(self) -> None:
        """Raises the failure of another worker, if there is one. Context: any.

        Raises:
            WorkerFailedError: A worker, or the master, has failed.
        """
        self._escape.check()

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
        self._shut_engine()

    def leave(self) -> None:
        """Leaves the job in order. May be repeated. Not collective. Context: any.

        A program that ends does so by itself.
        """
        if not self._has_left:
            self._has_left = True
            # Who has said good-bye may lose the service; a client that is still there aborts.
            self._disconnect()
            self._control.send("bye")
            self._aborted.wait(ECHO_S)  # For the answer; a failure has set it already.
            self._end()

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
                    table=_startup.table_of(self._states),
                    why="all workers are alive, but one of them is late or in another program.",
                    fix="look where the others are, or raise rx.Timeouts(collective=...).",
                )
            ) from error
        raise from_exception(error) from error

    # --- for the watcher -----------------------------------------------------------------

    def beacon(self) -> None:
        """Sends a sign of life."""
        guard = self._guard
        self._control.send("beacon", waits=guard.count, waiting=guard.depth > 0, step=self.step)

    def heard(self, message: Message) -> None:
        """A message of the master that is no abort."""
        kind = message["kind"]
        if kind in ("gathered", "ungathered"):
            self._gatherings.heard(message)
        elif kind == "refused":
            self._refused = str(message.get("why"))
            self._welcomed.set()
        elif kind == "welcome":
            self._coordinator_port = message.get("coordinator_port")
            self._welcomed.set()
        elif kind == "states":
            self._states = list(message["workers"])
        elif kind == "farewell":
            self._aborted.set()
        elif kind == "left" and self._engine is not None:
            self._engine.give_up(int(message["rank"]))

    def abort(self, failure: Failure) -> None:
        """Gets every thread of this worker out of its wait."""
        self._escape.failure = failure
        if not self._escape.is_own and not self._has_left:
            # A failure of this very worker means that it stands still, and in no guard.
            self._escape.abort(by_force=failure.rank == self.rank)
            self._shut_engine()
        self._aborted.set()
        self._welcomed.set()
        self._gatherings.wake()

    def escalate(self, seconds: float) -> None:
        """Goes further where the program does not hear of the failure."""
        if not self._has_left:
            self._escape.escalate(seconds)

    def _whereabouts(self) -> str:
        step = "" if self.step is None else f", at step {self.step}"
        return f"This is worker {self.rank}{step}."

    def forked(self) -> None:
        """Runs in a forked process, which is no worker: it must not keep the connection open."""
        global _current  # noqa: PLW0603 - a process is one worker
        self._has_left = True
        self._control.close()
        _current = None

    # --- the end -------------------------------------------------------------------------

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
        global _current  # noqa: PLW0603 - a process is one worker
        self._has_left = True
        self._watcher.stop()
        self._disconnect()
        self._control.close()
        self._endings.remove()
        if self._master is not None:
            self._master.stop()  # Ends once all have left.
        if _current is self:
            _current = None


def runtime() -> Runtime | None:
    """Returns this process's place in the job, or None before `Runtime.join` and after leaving."""
    return _current
