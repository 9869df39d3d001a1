"""The command, its subcommands, and what an error looks like there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from replicax.errors import InvalidArgumentError, ReplicaxError

from ._doctor import doctor
from ._explain import explain
from ._inspect import inspect
from ._run import run
from ._verify import verify

_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": run,
    "doctor": doctor,
    "explain": explain,
    "inspect": inspect,
    "verify": verify,
}

_USAGE = """\
usage: replicax COMMAND ...

commands:
  run        start the workers of a job, watch them, and report the first failure
  doctor     look at this machine, or all workers: what is wrong, why, and what to do
  explain    show what a step is: its boundary, proof, collectives, memory and cost
  inspect    show what the workers of a job ran last, and where they part
  verify     run a training step on your data, and check that all replicas do their part

`replicax COMMAND --help` tells more.
"""
_WRONG_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command `replicax`. Context: any.

    Args:
        argv: The arguments behind the command's name; None takes those of this process.

    Returns:
        The exit code: 2 for wrong arguments, else the subcommand's.

    Examples:
        >>> main(["--version"])
        replicax 0.1.0.dev0
        0
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else None
    if command in _COMMANDS:
        return _reported(command, arguments[1:])
    if command in ("--version", "-V"):
        import replicax  # noqa: PLC0415 - the package is complete by now

        sys.stdout.write(f"replicax {replicax.__version__}\n")
        return 0
    if command in ("--help", "-h"):
        sys.stdout.write(_USAGE)
        return 0
    sys.stderr.write(_USAGE)
    if command is not None:
        sys.stderr.write(f"\nreplicax: there is no command {command!r}.\n")
    return _WRONG_USAGE


def _reported(command: str, arguments: Sequence[str]) -> int:
    try:
        return _COMMANDS[command](arguments)
    except ReplicaxError as error:
        sys.stderr.write(f"replicax {command}: {error}\n")
        return _WRONG_USAGE if isinstance(error, InvalidArgumentError) else 1
