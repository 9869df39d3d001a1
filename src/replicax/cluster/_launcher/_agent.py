"""The launcher on a host that is not the one of rank 0: it does what it is told."""

from __future__ import annotations

import signal
import socket
import time
from typing import Any

from replicax.cluster._addresses import join_address
from replicax.cluster._frames import BadFrameError, Message, pack
from replicax.cluster._handshake import HANDSHAKE_S, HandshakeError, enter
from replicax.cluster._timeouts import Timeouts
from replicax.errors import StartupError, describe

from ._admission import first_message
from ._environment import JobPlace
from ._events import Event, Events, Interrupted, next_event
from ._launch import POLL_S, run_folder, say
from ._local import LocalWorkers
from ._options import LaunchOptions
from ._ports import free_addresses
from ._wire import Wire

_RETRY_S = 0.3
_CONNECT_S = 2.0
_LAST_WORDS_S = 0.5
"""How long a worker that has failed may still be read, before it is told how it ended."""


class Agent:
    """The workers of one host, under the launcher on the host of rank 0."""

    def __init__(
        self, options: LaunchOptions, events: Events, secret: bytes, secret_path: str
    ) -> None:
        self._options, self._events = options, events
        self._secret, self._secret_path = secret, secret_path
        self._logs = run_folder(options.log_dir)
        self._signalled: int | None = None
        self._lost: str | None = None
        self._wire: Wire | None = None

    def run(self) -> int:
        """Starts workers as often as it is told, and returns the exit code of the job.

        Raises:
            StartupError: The host of rank 0 cannot be reached, or refuses this one.
        """
        wire = self._wire = self._connect()
        wire.start()
        if self._options.min_nodes is not None:  # It may have begun without this host.
            say(f"node {self._options.node_rank} takes part from the next start on.")
        try:
            while self._lost is None:
                event = next_event(self._events, POLL_S)
                if event is None:
                    continue
                message = event.fields or {}
                if event.kind == "node" and message["kind"] == "done":
                    return int(message["code"])
                if event.kind == "node" and message["kind"] == "start":
                    self._once(message)
                else:
                    self._handle(event, None)
        finally:
            wire.close()
        say(f"the launcher on the host of rank 0 is lost: {self._lost}.")
        return 1 if self._signalled is None else 128 + self._signalled

    def _once(self, message: Message) -> None:
        """One start of the workers, to their end."""
        place = JobPlace(**message["place"])
        logs = self._logs / f"start_{place.restart}" if self._logs else None
        local = LocalWorkers(
            self._options,
            place,
            timeouts=Timeouts.from_json(message["timeouts"]),
            secret_file=self._secret_path,
            events=self._events,
            logs=logs,
        )
        try:
            while local.running:
                event = next_event(self._events, POLL_S)
                if event is not None:
                    self._handle(event, local)
                local.tick()
        finally:
            local.kill_all()
            local.close()

    def _handle(self, event: Event, local: LocalWorkers | None) -> None:
        message = event.fields or {}
        if event.kind == "signal":
            self._note_signal(event.value, local)
        elif event.kind == "lost":
            self._lost = str(message.get("why"))
            if local is not None:  # its workers hear of it on the control channel
                local.end(None, spare=range(1 << 20))
        elif local is None:
            return
        elif event.kind == "exited":
            rank = local.ended(event.who, event.value)
            tail = local.tail(rank, wait_seconds=_LAST_WORDS_S) if event.value else []
            self._send(
                "exited",
                rank=rank,
                code=event.value,
                tail=[line[:500] for line in tail[-40:]],
                was_killed=rank in local.killed,
            )
        elif message.get("kind") == "end":
            if message["number"] == signal.SIGKILL:
                local.kill_all()
            else:
                local.end(message["number"], message["spare"])

    def _note_signal(self, number: int, local: LocalWorkers | None) -> None:
        """The host of rank 0 hands it on to all; a second one ends the workers here at once."""
        if self._signalled is not None and local is not None:
            local.kill_all()
        self._signalled = number
        self._send("signal", number=number)
        if local is None:
            raise Interrupted(number)

    def _send(self, kind: str, **fields: Any) -> None:
        if self._wire is not None:
            self._wire.send(kind, **fields)

    def _connect(self) -> Wire:
        """A connection to the launcher on the host of rank 0, which may come later."""
        options = self._options
        deadline = time.monotonic() + options.timeouts.start
        while True:
            try:
                connection = self._introduced()
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    limit = f"within {options.timeouts.start:g} s: {error}"
                    raise self._unreachable(f"nobody answered {limit}") from error
                event = next_event(self._events, _RETRY_S)
                if event is not None and event.kind == "signal":
                    raise Interrupted(event.value) from None
        return Wire(
            connection,
            options.timeouts.beacon,
            on_message=lambda message: self._events.put(Event("node", 0, fields=message)),
            on_lost=lambda why: self._events.put(Event("lost", 0, fields={"why": why})),
        )

    def _introduced(self) -> socket.socket:
        """One try: a connection on which both ends have proved themselves, and said hello."""
        options = self._options
        address = (options.master_addr.strip("[]"), options.master_port)
        connection = socket.create_connection(address, timeout=_CONNECT_S)
        try:
            enter(connection, self._secret)
            connection.settimeout(HANDSHAKE_S)
            connection.sendall(_hello(options, connection.getsockname()[0]))
            answer = first_message(connection)
        except (HandshakeError, BadFrameError) as error:
            connection.close()
            raise self._unreachable(str(error)) from error
        except BaseException:
            connection.close()
            raise
        if answer["kind"] == "refused":
            connection.close()
            raise self._unreachable(str(answer.get("why")))
        return connection

    def _unreachable(self, why: str) -> StartupError:
        address = join_address(self._options.master_addr.strip("[]"), self._options.master_port)
        return StartupError(
            describe(
                f"Node {self._options.node_rank} cannot join the job at {address}: {why}",
                fix="check --master-addr, --master-port, --node-rank and the secret of each node.",
            )
        )


def _hello(options: LaunchOptions, host: str) -> bytes:
    return pack(
        "hello",
        node=options.node_rank,
        workers=options.workers,
        host=host,
        addresses=free_addresses(options.workers, host),
    )
