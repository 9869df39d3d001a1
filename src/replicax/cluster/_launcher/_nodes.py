"""The other hosts of a job, as the host of rank 0 sees them.

Their launchers connect to `--master-port`, prove the secret, and say `hello`. For each start of the
workers they get `start`; they tell of each worker that has `exited`, and of a `signal`. `end` asks
them to bring their workers to an end, and `done` is the last word.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Collection
from typing import Any

from replicax.cluster._addresses import join_address
from replicax.cluster._failure import Failure
from replicax.cluster._frames import pack
from replicax.errors import StartupError, Table, describe

from ._admission import NodePlace, family_of, first_message, place_of, prove
from ._environment import JobPlace
from ._events import Event, Events, Interrupted
from ._options import LaunchOptions
from ._ports import free_addresses
from ._wire import Wire

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
        self._lock = threading.Lock()
        self._hellos: dict[int, tuple[Wire, NodePlace]] = {}
        self._ranks: dict[int, list[int]] = {}
        self._alive: set[int] = set()
        self._failure: Failure | None = None
        self._signal: tuple[int, int] | None = None
        address = (options.master_addr.strip("[]"), options.master_port)
        try:
            family = family_of(*address, options.timeouts.start)
            self._listener = socket.create_server(address, family=family)
        except OSError as error:
            what = f"The launcher cannot listen on {join_address(*address)}: {error}."
            fix = "check that --master-addr is an address of this host, and that the port is free."
            raise StartupError(describe(what, fix=fix)) from error
        self._accepting = threading.Thread(target=self._accept, name="replicax-nodes", daemon=True)
        self._accepting.start()

    # --- who comes -----------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(
                target=self._admit, args=(connection,), name="replicax-admit", daemon=True
            ).start()

    def _admit(self, connection: socket.socket) -> None:
        """Lets a launcher in that knows the secret; everybody else is cut off unread."""
        try:
            prove(connection, self._secret)
            hello = first_message(connection)
            place = place_of(hello)
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return
        refusal = self._refusal(place)
        if refusal is not None:
            with contextlib.suppress(OSError):
                connection.sendall(pack("refused", why=refusal))
            connection.close()
            return
        node = place.node
        wire = Wire(
            connection,
            self._options.timeouts.beacon,
            on_message=lambda message: self._events.put(Event("node", node, fields=message)),
            on_lost=lambda why: self._events.put(Event("lost", node, fields={"why": why})),
        )
        with self._lock:
            self._hellos[node] = (wire, place)
        wire.send("welcome")
        wire.start()

    def _refusal(self, place: NodePlace) -> str | None:
        if not 0 < place.node < self._options.nnodes:
            return f"the node ranks of the others are 1 to {self._options.nnodes - 1}."
        with self._lock:
            if place.node in self._hellos:
                return f"there is a node {place.node} already, {self._hellos[place.node][1].host}."
        return None

    def gather(self) -> list[NodePlace]:
        """All hosts, once they are there. A host that was lost may have come again.

        Raises:
            StartupError: One did not come in time.
            Interrupted: A signal came meanwhile.
        """
        limit = self._options.timeouts.start
        deadline = time.monotonic() + limit
        while missing := self._missing():
            if time.monotonic() > deadline:
                rows = [
                    [node, "missing" if node in missing else "here"]
                    for node in range(self._options.nnodes)
                ]
                message = describe(
                    f"{len(missing)} of {self._options.nnodes} nodes did not come within "
                    f"{limit:g} s.",
                    table=Table(["node", "is"], rows),
                    why="each node has to start `replicax run`, with the same secret, and reach "
                    f"{join_address(self._options.master_addr, self._options.master_port)}.",
                    fix="look at the output of the missing nodes.",
                )
                raise StartupError(message)
            time.sleep(_POLL_S)
        with self._lock:
            self.places = [self.places[0], *(self._hellos[n][1] for n in sorted(self._hellos))]
        return self.places

    def _missing(self) -> list[int]:
        self._forget_the_lost()
        with self._lock:
            return [node for node in range(1, self._options.nnodes) if node not in self._hellos]

    def _forget_the_lost(self) -> None:
        """Between two starts: hosts that are gone make room; the rest of the queue is put back."""
        kept = []
        while not self._events.empty():
            event = self._events.get()
            if event.kind == "lost":
                self._drop(event.who)
            elif event.kind == "signal":
                raise Interrupted(event.value)
            elif event.kind == "node" and (event.fields or {}).get("kind") == "signal":
                raise Interrupted(int((event.fields or {})["number"]))
            else:
                kept.append(event)
        for event in kept:
            self._events.put(event)

    def _drop(self, node: int) -> None:
        with self._lock:
            wire, _ = self._hellos.pop(node, (None, None))
        if wire is not None:
            wire.close()

    # --- one start of the workers ---------------------------------------------------------

    def start(self, place: JobPlace) -> JobPlace:
        """Tells each host its place, and returns this host's."""
        first = 0
        self._failure = self._signal = None
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
                self._hellos[node.node][0].send("start", place=fields, timeouts=timeouts)
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
        if message["kind"] == "signal":
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
        self._drop(node)
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
        self._broadcast("end", number=number, spare=sorted(spare))

    def host_of(self, rank: int) -> str:
        """The host of a worker."""
        for place in self.places:
            if rank in self._ranks.get(place.node, []):
                return place.host
        return self.places[0].host

    def close(self, code: int) -> None:
        """Tells the other hosts how the job ended."""
        self._broadcast("done", code=code)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for node in list(self._hellos):
            self._drop(node)

    def _broadcast(self, kind: str, **fields: Any) -> None:
        with self._lock:
            wires = [wire for wire, _ in self._hellos.values()]
        for wire in wires:
            wire.send(kind, **fields)
