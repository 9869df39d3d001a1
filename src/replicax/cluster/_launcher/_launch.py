"""The launch of a job, as the host of rank 0 does it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from replicax.cluster._failure import Failure
from replicax.cluster._master import Master
from replicax.errors import InvalidArgumentError, describe
from replicax.recording import chosen_folder

from ._box import Report, box, exit_code
from ._environment import JobPlace
from ._events import Event, Events, Interrupted, next_event, signals_as
from ._job_file import job_file
from ._local import RECORDS, LocalWorkers
from ._nodes import NodeServer, NoNodes
from ._options import LaunchOptions
from ._ports import free_ports

POLL_S = 0.05


def launch(options: LaunchOptions) -> int:
    """Starts the workers of this host, sees them through to the end, and returns the exit code.

    Context: any; in the main thread it handles SIGTERM, SIGINT, SIGHUP and SIGQUIT meanwhile.

    Args:
        options: What to start.

    Returns:
        0 if all workers ended with 0; else the exit code of the first that failed, or 128 and the
        number of the signal that killed it; or 128 and the number of the signal that ended the
        launch.

    Raises:
        StartupError: An address cannot be bound, or a host did not come.
        NotFoundError: There is no such program.
        InvalidArgumentError: The folder for the output cannot be made.

    Examples:
        >>> launch(LaunchOptions(command=["sh", "-c", "exit $RANK"], workers=1))
        0
    """
    from ._agent import Agent  # noqa: PLC0415 - the two know each other

    events: Events = Events()
    secret = options.secret or secrets.token_hex(32).encode()
    with signals_as(events), secret_file(secret) as path:
        kind = Agent if options.node_rank else Launch
        try:
            return kind(options, events, secret, path).run()
        except Interrupted as signalled:
            say(f"ended by {signal.Signals(signalled.number).name}, before all hosts were there.")
            return 128 + signalled.number


class Launch:
    """A job, from its first start to its last end, on the host of rank 0."""

    def __init__(
        self, options: LaunchOptions, events: Events, secret: bytes, secret_path: str
    ) -> None:
        self._options, self._events = options, events
        self._secret, self._secret_path = secret, secret_path
        self._signalled: int | None = None
        self._starts = self._failures = 0
        self._logs = run_folder(options.log_dir)
        several = options.nnodes > 1
        self._nodes = NodeServer(options, events, secret) if several else NoNodes(options)

    def run(self) -> int:
        """Starts the workers, again after a failure where that was asked for."""
        code = 1
        try:
            while True:
                code, was_preempted = self._once()
                self._nodes.let_go(code)
                is_done = code == 0 and not was_preempted
                if is_done or self._signalled is not None or not self._goes_on(was_preempted):
                    break
                self._starts += 1
        finally:
            self._nodes.close(code)
        return code

    def _goes_on(self, was_preempted: bool) -> bool:  # noqa: FBT001 - one fact
        """Whether the workers are started again."""
        if was_preempted:
            is_wanted = self._options.on_preemption == "restart"
            if is_wanted:
                say("starting again after a preemption, which is not counted.")
            return is_wanted
        if self._failures == self._options.max_restarts:
            return False
        self._failures += 1
        say(f"starting again, {self._failures} of {self._options.max_restarts}.")
        return True

    def _once(self) -> tuple[int, bool]:
        """One start of all workers, to their end; whether that was a preemption."""
        options = self._options
        places = self._nodes.gather()
        several = options.nnodes > 1
        master = Master(
            world_size=sum(place.workers for place in places),
            secret=self._secret,
            host=options.master_addr if several else "127.0.0.1",
            port=options.master_port + 1 if several else 0,
            coordinator_port=options.master_port + 2 if several else 0,
            timeouts=options.timeouts,
        )
        master.start()
        logs = self._logs / f"start_{self._starts}" if self._logs else None
        listed = job_file(
            job=master.job,
            control=master.address,
            secret_file=self._secret_path,
            records=logs.absolute() / RECORDS if logs else chosen_folder(),
        )
        try:
            with listed as records:
                code = _Attempt(self, master, logs, records).run()
            was_preempted = master.preempted_at is not None and master.first_failure is None
            return code, was_preempted
        finally:
            master.stop()


class _Attempt:
    """One start of all workers."""

    def __init__(self, launch: Launch, master: Master, logs: Path | None, records: Path) -> None:
        self._launch, self._master = launch, master
        self._options, self._nodes = launch._options, launch._nodes
        self._started = time.time()
        self._codes: dict[int, int] = {}
        self._killed: set[int] = set()
        self._signalled: set[int] = set()
        self._ending = False
        self._tails: dict[int, list[str]] = {}
        self._logs, self._records = logs, records
        place = self._nodes.start(self._place())
        self._local = LocalWorkers(
            self._options,
            place,
            timeouts=self._options.timeouts,
            secret_file=launch._secret_path,
            events=launch._events,
            logs=self._logs,
        )

    def _place(self) -> JobPlace:
        options, nodes = self._options, self._nodes.places
        several = options.nnodes > 1
        port = options.master_port if options.master_port and not several else free_ports(1)[0]
        return JobPlace(
            first_rank=0,
            local_world_size=options.workers,
            world_size=sum(node.workers for node in nodes),
            master_addr=options.master_addr,
            master_port=port,
            control=self._master.address,
            coordinator=self._master.coordinator_address,
            tf_addresses=[address for node in nodes for address in node.addresses],
            restart=self._launch._starts,
        )

    def run(self) -> int:
        """Waits for all workers, and says how they ended."""
        try:
            while self._local.running or self._nodes.running:
                event = next_event(self._launch._events, POLL_S)
                if event is not None:
                    self._handle(event)
                self._look_for_a_failure()
                self._local.tick()
        finally:
            self._local.kill_all()
            self._local.close()
        self._look_for_a_failure()
        self._killed |= self._local.killed
        return self._verdict()

    def _handle(self, event: Event) -> None:
        if event.kind == "exited":
            self._note_end(self._local.ended(event.who, event.value), event.value)
        elif event.kind == "signal":
            self._forward(0, event.value)
        else:
            for ended in self._nodes.handle(event):
                self._tails[ended.rank] = ended.tail
                self._killed |= {ended.rank} if ended.was_killed else set()
                self._note_end(ended.rank, ended.code)
            if failure := self._nodes.take_failure():
                self._master.report(failure.rank, failure)
            if signalled := self._nodes.take_signal():
                self._forward(*signalled)

    def _note_end(self, rank: int, code: int) -> None:
        self._codes[rank] = code
        self._master.worker_exited(rank, code)

    def _forward(self, node: int, number: int) -> None:
        """Hands a signal on to all workers; a second one to one launcher ends them at once."""
        if node in self._signalled:
            self._local.kill_all()
            self._nodes.end(signal.SIGKILL, ())
            return
        self._signalled.add(node)
        if self._launch._signalled is not None:  # Slurm, say, sends it to all launchers
            return
        self._ending = True
        if not self._nodes.leaves(node, number):
            self._launch._signalled = number
        name, grace = signal.Signals(number).name, self._options.timeouts.shutdown
        say(f"{name}: handed on to the workers; they have {grace:g} s. A second one ends them.")
        self._local.end(number)
        self._nodes.end(number, ())

    def _look_for_a_failure(self) -> None:
        failure = self._master.first_failure
        if failure is None:
            return
        if failure.kind == "frozen" and failure.rank is not None:
            self._local.kill(failure.rank)
        if not self._ending:
            self._ending = True
            spare = self._master.joined()
            self._local.end(None, spare)
            self._nodes.end(None, spare)

    def _verdict(self) -> int:
        if (number := self._launch._signalled) is not None:
            own = [code for code in self._codes.values() if code > 0]
            say(f"ended by {signal.Signals(number).name}.")
            return own[0] if own else 128 + number
        failure = self._master.first_failure
        if failure is None:
            return self._saved_and_left()
        sys.stdout.flush()
        sys.stderr.write(box(self._report(failure)) + "\n")
        sys.stderr.flush()
        code = self._codes.get(-1 if failure.rank is None else failure.rank, 0)
        was_killed = failure.rank in self._killed
        return 1 if was_killed or code == 0 else exit_code(code)

    def _saved_and_left(self) -> int:
        """The end without a failure: 0, or the code that the workers have agreed on."""
        calls = self._master.preempted_at
        if calls is None:
            return 0
        code = next((exit_code(code) for code in self._codes.values() if code), 0)
        say(f"told to leave: the workers have saved after {calls} calls, and left with {code}.")
        return code

    def _report(self, failure: Failure) -> Report:
        rank = -1 if failure.rank is None else failure.rank
        return Report(
            failure=failure,
            world_size=self._master.world_size,
            codes=self._codes,
            killed=frozenset(self._killed),
            tail=self._tails.get(rank) or self._local.tail(rank),
            started=self._started,
            restart=self._launch._failures,
            max_restarts=self._options.max_restarts,
            host=self._nodes.host_of(rank),
            logs=str(self._logs) if self._logs else None,
            records=str(self._records) if list(self._records.glob("worker-*.json")) else None,
        )


def say(text: str) -> None:
    """One line of the launcher's own, to standard error."""
    sys.stderr.write(f"replicax run: {text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def secret_file(secret: bytes) -> Iterator[str]:
    """The secret in a file that only this user can read; it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="replicax-") as folder:  # 0700
        path = Path(folder) / "secret"
        path.touch(mode=0o600)
        path.write_bytes(secret)
        yield str(path)


def run_folder(log_dir: str | None) -> Path | None:
    """A new folder in `log_dir` for the output of this run."""
    if log_dir is None:
        return None
    folder = Path(log_dir) / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        what = f"The folder for the output cannot be made in {log_dir!r}: {error.strerror}."
        raise InvalidArgumentError(describe(what, fix="check --log-dir.")) from error
    return folder
