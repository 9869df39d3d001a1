"""What the master knows of each worker, and how it tells that one has failed.

No sockets and no clocks: events come in with the time, messages go out through `send`.
"""

from __future__ import annotations

import dataclasses
import secrets
import signal
from collections.abc import Callable

from replicax._log import logger

from ._failure import Failure
from ._frames import BadFrameError, Message, pack
from ._gathers import Gathers
from ._inspections import Inspections
from ._member import Member, find_stalled
from ._orders import Difference, Orders
from ._server import Connection
from ._silence import Silence, identity
from ._startup import table_of
from ._timeouts import Timeouts

_log = logger("cluster")

EXIT_STATUS_S = 0.15
"""How long a lost connection waits for the exit status of its process, which says more."""

NO_SIGN = "It gave no sign of life: it is stopped or cut off."

STALL_REPORT_S = 60.0
"""How long workers may wait for others before that is reported; at most half of `collective`."""

START = "start/"
"""Meetings whose name begins so are part of the start."""


class Job:
    """The workers of one job and its first failure.

    Args:
        world_size: Number of workers.
        timeouts: How long to wait for what.
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, world_size: int, timeouts: Timeouts, clock: Callable[[], float]) -> None:
        self.world_size = world_size
        self.timeouts = timeouts
        self.members = [Member() for _ in range(world_size)]
        self.first_failure: Failure | None = None
        self.coordinator_port: int | None = None  # told to who joins
        self.preempted_at: int | None = None  # the calls before the one that all left at
        self._clock = clock
        self._gathers = Gathers(world_size, self._send)
        self._orders = Orders(world_size)
        self._addresses: list[str] | None = None
        self.name = secrets.token_hex(6)  # tells its records from those of other jobs
        self._inspections = Inspections(self._send, self._facts)

    # --- what a worker says --------------------------------------------------------------

    def received(self, connection: Connection, message: Message) -> None:
        """One message of a worker."""
        rank = connection.rank
        if rank is None:
            self._hello(connection, message)
            return
        silence = self.members[rank].silence
        if silence is not None:
            silence.heard(self._clock())
        handler = self._HANDLERS.get(message["kind"])
        if handler is None:
            raise BadFrameError(f"an unknown kind of message: {message['kind']!r:.100}")
        try:
            handler(self, rank, message)
        except (KeyError, TypeError, ValueError) as error:
            raise BadFrameError(f"a {message['kind']} that makes no sense: {error!r}") from error

    def closed(self, connection: Connection) -> None:
        """A worker's connection has ended."""
        if connection.rank is None:
            return
        member = self.members[connection.rank]
        member.connection = None
        if not member.left and member.returncode is None and self.first_failure is None:
            member.lost = self._clock()

    def _hello(self, connection: Connection, message: Message) -> None:
        if message["kind"] == "inspect":
            self._inspections.ask(connection, self._there(), self._clock())
            return
        rank, size = message.get("rank"), message.get("world_size")
        if message["kind"] != "hello" or type(rank) is not int or type(size) is not int:
            raise BadFrameError("its first message is no hello")
        refusal = self._refusal(rank, size)
        if refusal is not None:
            _log.warning("Refused worker %s from %s: %s", rank, connection.peer, refusal)
            connection.send(pack("refused", why=refusal))
            connection.close()
            return
        connection.rank = rank
        now = self._clock()
        host, who = message.get("host"), message.get("identity")
        pid = who.get("pid") if isinstance(who, dict) else None
        addresses = message.get("addresses")
        self.members[rank] = Member(
            connection=connection,
            host=host if isinstance(host, str) else None,
            pid=pid if isinstance(pid, int) else None,
            came=True,
            silence=Silence(
                who, patience=self.timeouts.beacon, limit=self.timeouts.collective, now=now
            ),
            changed=now,
        )
        if isinstance(addresses, list) and len(addresses) == self.world_size:
            self._addresses = [str(address)[:200] for address in addresses]
        told = {"coordinator_port": self.coordinator_port, "job": self.name}
        connection.send(pack("welcome", identity=identity(), **told))
        if self.first_failure is not None:
            connection.send(pack("abort", failure=self.first_failure.to_json()))
        for other, member in enumerate(self.members):
            if not member.came and member.returncode is not None:
                self._ended_before_it_came(other, member.returncode)

    def _refusal(self, rank: int, size: int) -> str | None:
        if size != self.world_size:
            return f"the job has {self.world_size} workers, and it was told of {size}."
        if not 0 <= rank < self.world_size:
            return f"the workers of the job are 0 to {self.world_size - 1}."
        member = self.members[rank]
        if member.came:
            there = "is here already" if member.connection is not None else "was here already"
            return f"a worker {rank} {there}, from {member.host}, process {member.pid}."
        return None

    def _beacon(self, rank: int, message: Message) -> None:
        member = self.members[rank]
        waits, is_waiting = int(message["waits"]), bool(message["waiting"])
        if (waits, is_waiting) != (member.waits, member.is_waiting):
            member.changed = self._clock()
        member.waits, member.is_waiting = waits, is_waiting
        self._note_step(member, message)

    def _order(self, rank: int, message: Message) -> None:
        if self.first_failure is None:
            self._went_apart(self._orders.heard(rank, message, self._clock()))

    def _went_apart(self, difference: Difference | None) -> None:
        if difference is not None:
            self.declare(difference.to_failure())

    def _fail(self, rank: int, message: Message) -> None:
        member = self.members[rank]
        record = Failure.from_json(message["failure"])
        self._note_step(member, {"step": record.step})
        self.declare(dataclasses.replace(record, rank=rank, host=member.host))

    def _trouble(self, rank: int, message: Message) -> None:
        """The engine gave up in a worker: somebody who has left may be why."""
        _log.info("Worker %d: %s", rank, message.get("text"))
        for other, member in enumerate(self.members):
            if member.left or member.returncode is not None:
                what = f"It left the job while worker {rank} was still waiting for it."
                self._declare_of(other, "exit", what)
        self._send(rank, pack("states", workers=self._states()))

    def _states(self) -> list[dict[str, object]]:
        now = self._clock()
        return [
            {
                "worker": rank,
                "step": member.step,
                **self._orders.where(rank),
                "waits": member.waits,
                "is": "waiting" if member.is_waiting else "in Python",
                "for": f"{now - member.changed:.1f} s",
            }
            for rank, member in enumerate(self.members)
        ]

    def _facts(self) -> dict[str, object]:
        """What somebody gets to know who looks at the job."""
        failure = self.first_failure
        return {
            "workers": self.world_size,
            "states": self._states(),
            "failure": None if failure is None else failure.to_json(),
        }

    def _recorded(self, rank: int, message: Message) -> None:
        self._inspections.answered(rank, message)

    def _gather(self, rank: int, message: Message) -> None:
        key = (str(message["name"]), int(message["number"]))
        self._gathers.bring(rank, key, message["data"], float(message["timeout"]), self._clock())
        self._dismiss_for_those_who_left()

    def _bye(self, rank: int, _: Message) -> None:
        self.members[rank].left = True
        self._send(rank, pack("farewell"))
        self._went_apart(self._orders.left(rank))
        self._broadcast(pack("left", rank=rank))
        self._dismiss_for_those_who_left()

    def _notice(self, rank: int, message: Message) -> None:
        _log.info("Worker %d: notice %s", rank, message["topic"])
        self._broadcast(pack("notice", topic=str(message["topic"])[:200]))

    def _preempted(self, rank: int, message: Message) -> None:
        """It has saved and leaves, with whatever exit code."""
        self.preempted_at = int(message["calls"])
        self.members[rank].left = True

    @staticmethod
    def _note_step(member: Member, message: Message) -> None:
        step = message.get("step")
        if type(step) is int:
            member.step = step

    _HANDLERS: dict[str, Callable[[Job, int, Message], None]] = {  # noqa: RUF012 - constant
        "beacon": _beacon,
        "order": _order,
        "fail": _fail,
        "trouble": _trouble,
        "gather": _gather,
        "notice": _notice,
        "recorded": _recorded,
        "preempted": _preempted,
        "bye": _bye,
    }

    # --- what others say -----------------------------------------------------------------

    def exited(self, rank: int, returncode: int) -> None:
        """The process of a worker has ended."""
        member = self.members[rank]
        member.returncode = returncode
        member.lost = None
        if member.left and self.preempted_at is not None:
            return
        if returncode < 0:
            self._declare_of(rank, "signal", f"It was killed by {_signal_name(-returncode)}.")
        elif returncode > 0:
            self._declare_of(rank, "exit", f"Its process ended with exit code {returncode}.")
        elif not member.came:
            self._ended_before_it_came(rank, returncode)
        elif not member.left and not self.is_over(except_for=rank):
            what = "Its process ended with exit code 0, but it had not left the job."
            self._declare_of(rank, "exit", what)

    def _ended_before_it_came(self, rank: int, returncode: int) -> None:
        if any(member.came for member in self.members):
            what = f"Its process ended with exit code {returncode} before it joined the job."
            self._declare_of(rank, "never came", what)

    def is_over(self, *, except_for: int | None = None) -> bool:
        """Whether every worker has left, or its process has ended."""
        has_failed = self.first_failure is not None
        return all(
            member.left
            or member.returncode is not None
            or (has_failed and member.came and member.connection is None)
            for rank, member in enumerate(self.members)
            if rank != except_for
        )

    def _there(self) -> set[int]:
        """The workers that are connected, and have not said good-bye."""
        return {
            rank
            for rank, member in enumerate(self.members)
            if member.connection is not None and not member.left
        }

    def anyone_there(self) -> bool:
        """Whether a worker is connected, and has not said good-bye."""
        return bool(self._there())

    def anyone_connected(self) -> bool:
        """Whether a worker is connected, whatever it has said."""
        return any(member.connection is not None for member in self.members)

    # --- time ----------------------------------------------------------------------------

    def tick(self) -> None:
        """Looks for who is missing."""
        now = self._clock()
        self._inspections.tick(now)
        if self.first_failure is not None:
            return
        for key, waited, missing in self._gathers.late(now):
            self._late(key[0], waited, missing)
            self._gathers.dismiss(key, f"it was waited for {waited:g} s", self._states())
        self._gathers.part_the_lost(now)
        for rank, member in enumerate(self.members):
            if member.lost is not None and now - member.lost >= EXIT_STATUS_S:
                member.lost = None
                self._declare_of(rank, "lost", "Its connection ended without a word.")
            elif member.is_silent(now):
                self._declare_of(rank, "frozen", NO_SIGN)
        self._look_for_a_stall(now)
        patience = min(STALL_REPORT_S, self.timeouts.collective / 2)
        if self._orders.is_stalled(now, patience):
            states = self._states()
            _log.warning("Workers have waited for others for %g s.\n%s", patience, table_of(states))
            self._broadcast(pack("stalled", workers=states))

    def ping(self) -> None:
        """Tells all workers that the master is alive."""
        self._broadcast(pack("ping"))

    def _late(self, name: str, waited: float, missing: list[int]) -> None:
        if not name.startswith(START):
            return
        absent = [rank for rank in missing if not self.members[rank].came] or missing
        shown = ", ".join(self._named(rank) for rank in absent)
        came = [rank for rank in range(self.world_size) if rank not in absent]
        what = (
            f"It did not come within {waited:g} s. Of {self.world_size} workers, "
            f"{came} came; missing: {shown}."
        )
        self._declare_of(absent[0], "never came", what)

    def _named(self, rank: int) -> str:
        at = f" at {self._addresses[rank]}" if self._addresses else ""
        return f"worker {rank}{at}"

    def _look_for_a_stall(self, now: float) -> None:
        """One waits for long, and another runs Python for as long: that one stalls."""
        limit = self.timeouts.stall
        rank = find_stalled(self.members, limit, now) if limit is not None else None
        if rank is not None:
            member = self.members[rank]
            what = (
                f"Its Python code has stood still for {now - member.changed:.1f} s after "
                f"{member.waits} waits, while others waited for it."
            )
            self._declare_of(rank, "stall", what)

    # --- failures ------------------------------------------------------------------------

    def declare(self, failure: Failure) -> None:
        """The first failure is told to all; later ones follow from it."""
        if self.first_failure is not None:
            return
        self.first_failure = failure
        _log.warning(
            "%s failed (%s): %s", failure.who, failure.kind, failure.message.partition("\n")[0]
        )
        self._broadcast(pack("states", workers=self._states()))  # For the records.
        self._broadcast(pack("abort", failure=failure.to_json()))

    def _declare_of(self, rank: int, kind: str, message: str) -> None:
        member = self.members[rank]
        error = "replicax.errors:StartupError" if kind == "never came" else None
        self.declare(
            Failure(
                rank=rank,
                kind=kind,
                message=message,
                step=member.step,
                host=member.host,
                error=error,
            )
        )

    def _dismiss_for_those_who_left(self) -> None:
        left = [rank for rank, member in enumerate(self.members) if member.left]
        if left:
            self._gathers.dismiss_all(f"worker(s) {left} had left the job")

    # --- sending -------------------------------------------------------------------------

    def _send(self, rank: int, frame: bytes) -> None:
        connection = self.members[rank].connection
        if connection is not None:
            connection.send(frame)

    def _broadcast(self, frame: bytes) -> None:
        for rank in range(self.world_size):
            self._send(rank, frame)


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
