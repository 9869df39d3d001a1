"""`run_workers`: a function in real worker processes."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from replicax.cluster import Master, Timeouts
from replicax.cluster._launcher._environment import JobPlace, worker_environment
from replicax.cluster._launcher._events import Event, Events, next_event
from replicax.cluster._launcher._group import WorkerGroup
from replicax.cluster._launcher._launch import secret_file
from replicax.cluster._launcher._output import OutputPump, Stream
from replicax.cluster._launcher._ports import free_addresses, free_ports
from replicax.errors import (
    ArgumentTypeError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    describe,
)

from ._child import MAIN

_PROGRAM = Path(__file__).with_name("_child.py")
_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=\d+")
_POLL_S = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerResult:
    """What became of one worker.

    Attributes:
        rank: The worker.
        value: What the function returned.
        error: What it raised; an `UnavailableError` where the process ended without a word.
        traceback: The traceback in that process.
        exit_code: The exit status of the process; negative: the signal that ended it.
        timed_out: Whether it was killed because the time was over.
        stdout: What it wrote to standard output.
        stderr: What it wrote to standard error.
        seconds: How long the process lived.
    """

    rank: int
    value: Any = None
    error: BaseException | None = None
    traceback: str | None = None
    exit_code: int
    timed_out: bool = False
    stdout: str = ""
    stderr: str = ""
    seconds: float

    def unwrap(self) -> Any:
        """Returns what the function returned, or raises what it raised. Context: any."""
        if self.error is not None:
            if self.traceback:
                self.error.add_note(f"In worker {self.rank}:\n{self.traceback}")
            raise self.error
        return self.value


def run_workers(
    n: int,
    fn: Callable[..., Any],
    *args: Any,
    devices_per_worker: int = 1,
    timeout: float = 60.0,
    timeouts: Timeouts | None = None,
    environment: Mapping[str, str | None] | None = None,
) -> list[WorkerResult]:
    """Runs a function in `n` real worker processes, and waits for all of them. Context: any.

    Each worker is a fresh process with the variables that `replicax run` sets, so
    `rx.MultiWorkerMirroredStrategy()` in `fn` joins them. Unlike there, a failure ends no other
    worker: a test sees what each of them does. `fn` may kill or stop its own process.

    Args:
        n: Number of workers.
        fn: A function that a fresh process can import: defined at the top level of a module.
        args: What it is called with; picklable.
        devices_per_worker: Number of CPU devices of each worker.
        timeout: Seconds until the workers that are left are killed.
        timeouts: The time-outs that the workers find in their environment.
        environment: Variables to change; None takes one away.

    Returns:
        What became of each worker, by rank.

    Raises:
        InvalidArgumentError: A number is below 1, or `fn` cannot be imported elsewhere.
        ArgumentTypeError: `args` cannot be pickled.

    Examples:
        >>> import math
        >>> [result.unwrap() for result in run_workers(2, math.factorial, 5)]
        [120, 120]
    """
    if n < 1 or devices_per_worker < 1 or timeout <= 0:
        raise InvalidArgumentError(
            describe(
                f"run_workers got n={n}, devices_per_worker={devices_per_worker}, "
                f"timeout={timeout}.",
                why="each must be above 0.",
            )
        )
    timeouts = timeouts or Timeouts(start=min(60.0, timeout))
    task = _task(fn, args)
    secret = secrets.token_hex(32).encode()
    master = Master(world_size=n, secret=secret, timeouts=timeouts)
    with tempfile.TemporaryDirectory(prefix="replicax-") as folder, secret_file(secret) as path:
        Path(folder, "task").write_bytes(task)
        master.start()
        try:
            place = JobPlace(
                first_rank=0,
                local_world_size=n,
                world_size=n,
                master_port=free_ports(1)[0],
                control=master.address,
                coordinator=master.coordinator_address,
                tf_addresses=free_addresses(n, "127.0.0.1"),
            )
            base = _base(devices_per_worker)
            workers = [
                worker_environment(base, place, rank, timeouts=timeouts, secret_file=path)
                for rank in range(n)
            ]
            workers = [_changed(variables, environment or {}) for variables in workers]
            return _Run(Path(folder), workers, timeouts, master.worker_exited).run(timeout)
        finally:
            master.stop()


def _task(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The call as another process can make it."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    home = sys.modules.get(module or "")
    found: Any = home
    for part in (name or "<none>").split("."):
        found = getattr(found, part, None)
    if home is None or found is not fn:
        raise InvalidArgumentError(
            describe(
                f"run_workers got {fn!r}, which a fresh process cannot import.",
                why="a worker finds the function by its module and its name.",
                fix="define it with `def` at the top level of a module, and pass what it needs as "
                "arguments.",
            )
        )
    try:
        arguments = pickle.dumps(args)
    except Exception as error:
        raise ArgumentTypeError(
            describe(
                f"The arguments of {name} cannot be sent to a worker: {error}.",
                why="they are pickled.",
            )
        ) from error
    task = {
        "path": sys.path,
        "module": MAIN if module == "__main__" else module,
        "file": getattr(home, "__file__", None) or "",
        "name": name,
        "arguments": arguments,
    }
    return pickle.dumps(task)


def _base(devices: int) -> dict[str, str]:
    """The variables of this process, on CPU devices of the wanted number."""
    base = {name: value for name, value in os.environ.items() if name != "REPLICAX_CPU_DEVICES"}
    base["XLA_FLAGS"] = _DEVICE_COUNT.sub("", base.get("XLA_FLAGS", ""))
    return base | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}


def _changed(base: Mapping[str, str], more: Mapping[str, str | None]) -> dict[str, str]:
    """The variables with more of them, or some taken away."""
    changed: dict[str, str | None] = {**base, **more}
    return {name: value for name, value in changed.items() if value is not None}


class _Run:
    """The processes of one call."""

    def __init__(
        self,
        folder: Path,
        workers: list[dict[str, str]],
        timeouts: Timeouts,
        on_exit: Callable[[int, int], None],
    ) -> None:
        self._folder, self._workers, self._on_exit = folder, workers, on_exit
        self._timeouts = timeouts
        self._events: Events = Events()
        self._pump = OutputPump()

    def run(self, timeout: float) -> list[WorkerResult]:
        """Starts all, and waits for all."""
        group = WorkerGroup(
            self._timeouts.shutdown,
            lambda rank, code: self._events.put(Event("exited", rank, code)),
        )
        ends: dict[int, tuple[int, float]] = {}
        killed: set[int] = set()
        began = time.monotonic()
        try:
            for rank in range(len(self._workers)):
                self._start(group, rank)
            self._pump.start()
            while len(ends) < len(self._workers):
                event = next_event(self._events, _POLL_S)
                if event is not None:
                    ends[event.who] = (event.value, time.monotonic() - began)
                    self._on_exit(event.who, event.value)
                elif not killed and time.monotonic() > began + timeout:
                    killed = set(range(len(self._workers))) - set(ends)
                    group.kill()
        except BaseException:
            group.kill()
            raise
        finally:
            group.close()
            self._pump.finish()
        return [self._result(rank, *ends[rank], rank in killed) for rank in range(len(ends))]

    def _start(self, group: WorkerGroup, rank: int) -> None:
        command = [sys.executable, "-u", str(_PROGRAM)]
        command += [str(self._folder / "task"), str(self._folder / f"result_{rank}")]
        worker = group.start(rank, command, self._workers[rank])
        for name, pipe in (("stdout", worker.stdout), ("stderr", worker.stderr)):
            assert pipe is not None  # noqa: S101 - for mypy: it was asked for
            file = (self._folder / f"{name}_{rank}").open("wb")
            self._pump.add(Stream(rank, pipe, None, file))

    def _result(self, rank: int, code: int, seconds: float, timed_out: bool) -> WorkerResult:  # noqa: FBT001
        stdout, stderr = (
            (self._folder / f"{name}_{rank}").read_text(errors="replace")
            for name in ("stdout", "stderr")
        )
        found = self._outcome(rank, code, stderr, timed_out=timed_out)
        return WorkerResult(
            rank=rank,
            exit_code=code,
            timed_out=timed_out,
            stdout=stdout,
            stderr=stderr,
            seconds=seconds,
            **found,
        )

    def _outcome(self, rank: int, code: int, stderr: str, *, timed_out: bool) -> dict[str, Any]:
        path = self._folder / f"result_{rank}"
        if not path.exists():
            how = "was killed because the time was over" if timed_out else f"ended with {code}"
            what = f"Worker {rank} {how}, without a result."
            last = "".join(stderr.splitlines(keepends=True)[-20:])
            return {"error": UnavailableError(describe(what)), "traceback": last or None}
        result: dict[str, Any] = pickle.loads(path.read_bytes())  # noqa: S301 - our child's
        if "unpicklable" in result:
            what = f"The result of worker {rank} cannot be sent back: {result['unpicklable']}."
            why = "values and exceptions are pickled."
            error = InternalError(describe(what, why=why))
            return {"error": error, "traceback": result["traceback"]}
        return result
