"""The other hosts of a job, as the host of rank 0 sees them.

Their launchers connect to `--master-port`, prove the secret, and say `hello`. For each start of the
workers they get `start`; they tell of each worker that has `exited`, and of a `signal`. `end` asks
them to bring their workers to an end, and `done` is the last word.
"""

from __future__ import annotations

import dataclasses
import signal
import socket
import time
from collections.abc import Collection

from replicax.cluster._addresses import join_address
from replicax.cluster._failure import Failure
from replicax.errors import StartupError, Table, describe

from ._admission import NodePlace
from ._door import Door
from ._environment import JobPlace
from ._events import Event, Events, Interrupted
from ._options import LaunchOptions
from ._ports import free_addresses

_POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class Ended:
    """A worker of another host that has ended.

    Attributes:
        rank: The worker.
        code: Its exit status.
        tail: The last lines of its standard error, where it failed.
        was_killed: Whether its launcher killed it.
    """

    rank: int
    code: int
    tail: list[str]
    was_killed: bool


class NoNodes:
    """A job on this host alone."""

    running = False

    def __init__(self, options: LaunchOptions) -> None:
        own = free_addresses(options.workers, options.master_addr)
        self.places = [NodePlace(0, options.workers, socket.gethostname(), own)]

    def gather(self) -> list[NodePlace]:
        """All hosts: this one."""
        return self.places

    def start(self, place: JobPlace) -> JobPlace:
        """Tells nobody."""
        return place

    def handle(self, event: Event) -> list[Ended]:
        """Nobody else has workers."""
        del event
        return []

    def take_failure(self) -> Failure | None:
        """Nobody else can fail."""
        return None

    def take_signal(self) -> tuple[int, int] | None:
        """Nobody else gets one."""
        return None

    def end(self, number: int | None, spare: Collection[int]) -> None:
        """Asks nobody."""

    def leaves(self, node: int, number: int) -> bool:
        """This host is the job."""
        del node, number
        return False

    def let_go(self, code: int) -> None:
        """Nobody else is there."""

    def host_of(self, rank: int) -> str:
        """This host."""
        del rank
        return self.places[0].host

    def close(self, code: int) -> None:
        """Tells nobody."""


class NodeServer(NoNodes):
    """The other hosts of a job.

    Raises:
        StartupError: The port cannot be bound.
    """

    def __init__(self, options: LaunchOptions, events: Events, secret: bytes) -> None:
        super().__init__(options)
        self._options, self._events, self._secret = options, events, secret
        self._leaving: set[int] = set()
        self._ranks: dict[int, list[int]] = {}
        self._alive: set[int] = set()
        self._failure: Failure | None = None
        self._signal: tuple[int, int] | None = None
        self._door = Door(options, events, secret)

    def gather(self) -> list[NodePlace]:
        """All hosts, once they are there; of a job that may shrink, those that came in time.

        A host that was lost may have come again, or another one in its place.

        Raises:
            StartupError: Too few came in time.
            Interrupted: A signal came meanwhile.
        """
        options, door = self._options, self._door
        limit = options.timeouts.start
        deadline = time.monotonic() + limit
        enough_since: float | None = None
        while True:
            self._forget_the_lost()
            count = 1 + len(door.places())
            now = time.monotonic()
            if count < options.least_nodes:
                enough_since = None
            elif enough_since is None:
                enough_since = now
            if count == options.nnodes:
                break
            if enough_since is not None and now > enough_since + options.last_call:
                break
            if enough_since is None and now > deadline:
                raise self._too_few(limit)
            time.sleep(_POLL_S)
        self.places = [self.places[0], *door.places()]
        return self.places

    def _too_few(self, limit: float) -> StartupError:
        options = self._options
        here = {0, *(place.node for place in self._door.places())}
        rows = [[node, "here" if node in here else "missing"] for node in range(options.nnodes)]
        least = "" if options.min_nodes is None else f", at least {options.least_nodes} are needed"
        return StartupError(
            describe(
                f"{options.nnodes - len(here)} of {options.nnodes} nodes did not come within "
                f"{limit:g} s{least}.",
                table=Table(["node", "is"], rows),
                why="each node has to start `replicax run`, with the same secret, and reach "
                f"{join_address(options.master_addr, options.master_port)}.",
                fix="look at the output of the missing nodes.",
            )
        )

    def _forget_the_lost(self) -> None:
        """Between two starts: hosts that are gone make room; the rest of the queue is put back."""
        kept = []
        while not self._events.empty():
            event = self._events.get()
            message = event.fields or {}
            if event.kind == "lost":
                self._door.drop(event.who)
            elif event.kind == "signal":
                raise Interrupted(event.value)
            elif event.kind == "node" and message.get("kind") == "signal":
                if not self._may_leave(int(message["number"])):
                    raise Interrupted(int(message["number"]))
            else:
                kept.append(event)
        for event in kept:
            self._events.put(event)

    def _may_leave(self, number: int) -> bool:
        """Whether a host that got this signal leaves, and the job goes on without it."""
        return number == signal.SIGTERM and self._options.on_preemption == "restart"

    # --- one start of the workers ---------------------------------------------------------

    def start(self, place: JobPlace) -> JobPlace:
        """Tells each host its place, and returns this host's."""
        first = 0
        self._failure = self._signal = None
        self._ranks.clear()
        for node in self.places:
            self._ranks[node.node] = list(range(first, first + node.workers))
            if node.node:
                theirs = dataclasses.replace(
                    place,
                    first_rank=first,
                    local_world_size=node.workers,
                    node_rank=node.node,
                )
                timeouts = self._options.timeouts.to_json()
                fields = dataclasses.asdict(theirs)
                self._door.send(node.node, "start", place=fields, timeouts=timeouts)
            first += node.workers
        self._alive = {rank for node, ranks in self._ranks.items() if node for rank in ranks}
        return place

    @property
    def running(self) -> bool:  # type: ignore[override]
        """Whether another host still has workers."""
        return bool(self._alive)

    def handle(self, event: Event) -> list[Ended]:
        """The workers that have ended, by what another host says or by its own end."""
        if event.kind == "lost":
            return self._lost(event.who, str((event.fields or {}).get("why")))
        message = event.fields or {}
        if message["kind"] == "signal" and event.who in self._ranks:  # Others only wait.
            self._signal = event.who, int(message["number"])
        if message["kind"] != "exited":
            return []
        ranks = self._ranks.get(event.who, [])
        rank = int(message["rank"])
        if rank not in ranks:
            return []
        self._alive.discard(rank)
        tail = [str(line) for line in message.get("tail", [])]
        return [Ended(rank, int(message["code"]), tail, bool(message.get("was_killed")))]

    def _lost(self, node: int, why: str) -> list[Ended]:
        self._door.drop(node)
        gone = sorted(self._alive & set(self._ranks.get(node, [])))
        self._alive -= set(gone)
        if gone:
            self._failure = Failure(
                rank=gone[0],
                kind="lost",
                message=f"Its node {node} is lost: {why}.",
                host=self.host_of(gone[0]),
            )
        # Nobody knows how they ended; the failure is declared first, and says why.
        return []

    def take_failure(self) -> Failure | None:
        """The loss of a host, once."""
        failure, self._failure = self._failure, None
        return failure

    def take_signal(self) -> tuple[int, int] | None:
        """The node whose launcher got a signal, and its number; once."""
        found, self._signal = self._signal, None
        return found

    def end(self, number: int | None, spare: Collection[int]) -> None:
        """Asks the other hosts to bring their workers to an end."""
        for node in self._ranks:
            self._door.send(node, "end", number=number, spare=sorted(spare))

    def host_of(self, rank: int) -> str:
        """The host of a worker."""
        for place in self.places:
            if rank in self._ranks.get(place.node, []):
                return place.host
        return self.places[0].host

    def close(self, code: int) -> None:
        """Tells the other hosts how the job ended."""
        self._door.close(code)

    def leaves(self, node: int, number: int) -> bool:
        """Whether a host that got a signal leaves after this start, and the others go on."""
        if node and self._may_leave(number):
            self._leaving.add(node)
        return node in self._leaving

    def let_go(self, code: int) -> None:
        """The end of a start: hosts that leave are told so."""
        for node in self._leaving:
            self._door.send(node, "done", code=code)
            self._door.drop(node)
        self._leaving.clear()
