"""What a launch is told."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from replicax.cluster._timeouts import Timeouts
from replicax.errors import InvalidArgumentError, describe

ON_PREEMPTION = ("exit", "restart")
NO_STREAMS, STDOUT, STDERR, BOTH = range(4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What a launch is told. Context: any.

    Attributes:
        command: The program of each worker with its arguments.
        workers: Number of workers on this host.
        nnodes: Number of hosts; with `min_nodes`, the greatest.
        min_nodes: The least number of hosts that a start needs; None: `nnodes`.
        last_call: Seconds that a start waits for more hosts once `min_nodes` are there.
        node_rank: Number of this host, from 0.
        master_addr: The address of host 0 that the other hosts reach.
        master_port: The port where the hosts meet; with one host, handed on as `MASTER_PORT`.
            0 takes a free one.
        max_restarts: How many times all workers are started again after a failure.
        on_preemption: What follows once the workers were told to leave, and have saved: `exit`, or
            `restart`, which is not counted.
        log_dir: Folder for the output of the workers; None writes no files.
        console: The streams that are shown, for each local rank: 0 none, 1 standard output,
            2 standard error, 3 both. Ranks that are left out show both.
        files: The streams that are written to files, likewise.
        secret: The secret of the job; None makes one, which only works with one host.
        timeouts: How long to wait for what.

    Raises:
        InvalidArgumentError: A number is out of range, or several hosts have no secret.

    Examples:
        >>> LaunchOptions(command=["python", "train.py"], workers=4).nnodes
        1
    """

    command: Sequence[str]
    workers: int = 1
    nnodes: int = 1
    min_nodes: int | None = None
    last_call: float = 30.0
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    max_restarts: int = 0
    on_preemption: str = "exit"
    log_dir: str | None = None
    console: Mapping[int, int] = dataclasses.field(default_factory=dict)
    files: Mapping[int, int] = dataclasses.field(default_factory=dict)
    secret: bytes | None = dataclasses.field(default=None, repr=False)
    timeouts: Timeouts = dataclasses.field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        """Checks what does not depend on the host."""
        for name, least in (("workers", 1), ("nnodes", 1), ("node_rank", 0), ("max_restarts", 0)):
            if getattr(self, name) < least:
                raise InvalidArgumentError(
                    describe(f"{name} is {getattr(self, name)}.", why=f"it is {least} or more.")
                )
        if not 1 <= self.least_nodes <= self.nnodes:
            raise InvalidArgumentError(
                describe(
                    f"The least number of nodes is {self.least_nodes}, the greatest {self.nnodes}.",
                    fix="write the smaller one first: --nnodes 1:4.",
                )
            )
        if not 0 <= self.last_call < math.inf:
            raise InvalidArgumentError(
                describe(f"last_call is {self.last_call}.", fix="pass seconds, 0 or more.")
            )
        if self.on_preemption not in ON_PREEMPTION:
            raise InvalidArgumentError(
                describe(
                    f"on_preemption is {self.on_preemption!r}.",
                    fix=f"use one of {', '.join(ON_PREEMPTION)}.",
                )
            )
        if not self.command:
            raise InvalidArgumentError(describe("There is no program to run."))
        if self.node_rank >= self.nnodes:
            raise InvalidArgumentError(
                describe(
                    f"The node rank is {self.node_rank}, but there are {self.nnodes} nodes.",
                    why=f"nodes are numbered from 0 to {self.nnodes - 1}.",
                )
            )
        if self.nnodes > 1 and self.secret is None:
            raise InvalidArgumentError(
                describe(
                    f"A job on {self.nnodes} nodes needs a secret that all of them know.",
                    why="who can reach the port could join the job, or end it.",
                    fix="write one to a file that only you can read (`openssl rand -hex 32`), and "
                    "name it on each node in REPLICAX_SECRET_FILE or --secret-file.",
                )
            )
        if self.nnodes > 1 and not self.master_port:
            raise InvalidArgumentError(
                describe(
                    "A job on several nodes needs a port that all of them know.",
                    fix="pass --master-port, or --rdzv-endpoint host:port.",
                )
            )

    @property
    def least_nodes(self) -> int:
        """The least number of hosts that a start needs."""
        return self.nnodes if self.min_nodes is None else self.min_nodes

    def streams_of(self, which: str, local_rank: int) -> int:
        """The streams of a worker that are shown (`console`) or written to files (`files`)."""
        if which == "console":
            return self.console.get(local_rank, BOTH)
        if self.log_dir is None:
            return NO_STREAMS
        return self.files.get(local_rank, BOTH)
