"""This process as a worker: how it joins a job, waits in it, and meets the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax

from replicax.errors import StartupError, describe

from . import _compat, _engine, _first_collective, _startup
from ._addresses import join_address, split_address
from ._control import Control
from ._guard import OtherGuard
from ._master_process import MasterProcess
from ._order import ORDER
from ._relay import Relay, without_proxy
from ._timeouts import Timeouts
from ._waiting import call_elsewhere
from ._worker import Worker

_Result = TypeVar("_Result")

_current: Runtime | None = None


class Runtime(Worker):
    """This process as one worker of a job. One a process; `Runtime.join` makes it.

    Attributes:
        rank: Number of this worker, from 0.
        world_size: Number of workers.
        timeouts: How long it waits for what.
        step: The step that runs, for reports of failures; `progress` sets it.
        notices: What a worker lets all others know at once.
    """

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
        first: Callable[[Runtime], None] | None = None,
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
            first: Is called once the workers can meet, before anything of theirs is compared.

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
            worker._start(coordinator_address, first)
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
        first: Callable[[Runtime], None] | None = None,
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
            first: Is called once the workers can meet, before anything of theirs is compared.

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
                rank, world_size, address, None, secret, timeouts, addresses=addresses, first=first
            )
        except BaseException:
            if master is not None:
                master.stop()
            raise
        worker._master = master
        return worker

    def _start(
        self, coordinator_address: str | None, first: Callable[[Runtime], None] | None
    ) -> None:
        ORDER.restart()
        ORDER.is_watched = True
        self._endings.install()
        self._keeping.listen()
        self._control.send("hello", **_startup.hello(self.rank, self.world_size, self._addresses))
        self._watcher.start()
        with self._guard:
            self._welcomed.wait(self.timeouts.start)
        if self._refused is not None:
            raise StartupError(describe(f"The master refused worker {self.rank}: {self._refused}"))
        if first is not None:
            first(self)
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
        _first_collective.prove(self, seconds)

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

    def _forget(self) -> None:
        global _current  # noqa: PLW0603 - a process is one worker
        if _current is self:
            _current = None


def runtime() -> Runtime | None:
    """Returns this process's place in the job, or None before `Runtime.join` and after leaving."""
    return _current
