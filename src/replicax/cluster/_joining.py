"""Joining the job that the environment, or a resolver, describes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from replicax.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Table,
    describe,
)

from ._resolvers import ClusterResolver, TorchrunResolver, detect_cluster
from ._resolvers._torchrun import CONTROL, COORDINATOR
from ._runtime import Runtime, runtime
from ._timeouts import Timeouts

SECRET = "REPLICAX_SECRET"  # noqa: S105 - the name of a variable
SECRET_FILE = "REPLICAX_SECRET_FILE"  # noqa: S105 - the same
TIMEOUTS = "REPLICAX_TIMEOUTS"


def join_cluster(
    resolver: ClusterResolver | None = None,
    timeouts: Timeouts | None = None,
    *,
    first: Callable[[Runtime], None] | None = None,
) -> Runtime | None:
    """Joins the job that this process is a worker of. Context: any; starts jax. Collective.

    Workers of `replicax run` meet at its master. Where something else started them, worker 0
    starts the master at the resolver's `coordinator()`. A second call returns the same.

    Args:
        resolver: Describes the job; None takes what `detect_cluster` finds.
        timeouts: How long to wait for what; None takes those of `replicax run`, else the defaults.
        first: Is called once the workers can meet, before anything of theirs is compared.

    Returns:
        This process's place in the job; None where it has no other workers.

    Raises:
        InvalidArgumentError: Variables contradict each other, or the workers could not meet.
        FailedPreconditionError: There is no secret, or a proxy would catch the connections.
        DevicesStartedError: jax's devices were used before.
        StartupError: A worker did not come in time, or the workers do not match.
    """
    if resolver is None:
        resolver = detect_cluster()
    else:
        resolver.check()
    if resolver is None or resolver.world_size == 1:
        return None
    rank, size = resolver.rank, resolver.world_size
    if (joined := runtime()) is not None:
        _check_same(joined.rank, joined.world_size, resolver, "the job that it has joined")
        return joined
    timeouts = timeouts or timeouts_of(os.environ)
    secret = secret_of(os.environ)
    addresses = resolver.cluster_spec().training_addresses()
    known = addresses if all(addresses) else None  # they must be equal on all workers
    if control := os.environ.get(CONTROL):
        launched = TorchrunResolver()
        _check_same(launched.rank, launched.world_size, resolver, "replicax run")
        meeting = os.environ.get(COORDINATOR)
        return Runtime.join(
            rank, size, control, meeting, secret, timeouts, addresses=known, first=first
        )
    return Runtime.join_without_launcher(
        rank, size, resolver.coordinator(), secret, timeouts, addresses=known, first=first
    )


def timeouts_of(environment: Mapping[str, str]) -> Timeouts:
    """The time-outs that `replicax run` has handed on, else the defaults.

    Raises:
        InvalidArgumentError: The variable is no JSON object of time-outs.
    """
    text = environment.get(TIMEOUTS)
    if not text:
        return Timeouts()
    try:
        return Timeouts.from_json(json.loads(text))
    except ValueError as error:
        what = f"The environment has {TIMEOUTS}={text!r}."
        raise InvalidArgumentError(describe(what, why=str(error))) from error


def secret_of(environment: Mapping[str, str]) -> bytes:
    """The secret of the job.

    Raises:
        FailedPreconditionError: There is none.
        NotFoundError: Its file cannot be read.
    """
    if path := environment.get(SECRET_FILE):
        try:
            return Path(path).read_bytes().strip()
        except OSError as error:
            what = f"The file in {SECRET_FILE} cannot be read: {error.strerror}."
            raise NotFoundError(describe(what, fix="check that this host has it.")) from error
    if text := environment.get(SECRET, "").strip():
        return text.encode()
    raise FailedPreconditionError(
        describe(
            "The workers have no secret.",
            why="who can reach the port could join the job, or end it.",
            fix=f"set {SECRET_FILE} for all workers to a file that only you can read (`openssl "
            "rand -hex 32`), or start them with `replicax run`.",
        )
    )


def _check_same(rank: int, size: int, resolver: ClusterResolver, other: str) -> None:
    """The resolver must describe the job that this process is in."""
    rows = [[other, rank, size], [type(resolver).__name__, resolver.rank, resolver.world_size]]
    if rows[0][1:] != rows[1][1:]:
        raise InvalidArgumentError(
            describe(
                f"{rows[1][0]} describes another job than {other}.",
                table=Table(["by", "rank", "workers"], rows),
                why="a process is one worker of one job.",
                fix="leave the resolver out.",
            )
        )
