"""The flags of `replicax run`: one list that the parser, the environment and the help share."""

from __future__ import annotations

import dataclasses
import functools
import textwrap
from collections.abc import Mapping, Sequence

from replicax.cluster import Timeouts
from replicax.errors import InvalidArgumentError, describe

PREFIX = "REPLICAX_RUN_"
_WIDTH, _INDENT = 88, " " * 8
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        name: Its long name without dashes.
        value: What its value is, in words; empty for a switch.
        help: What it does.
        short: Its short name without a dash, or empty.
    """

    name: str
    value: str
    help: str
    short: str = ""

    @property
    def variable(self) -> str:
        """The environment variable that stands for it."""
        return PREFIX + self.name.replace("-", "_").upper()

    @property
    def options(self) -> list[str]:
        """All ways to write it; underscores are accepted, as torchrun does."""
        names = [f"--{self.name}", f"--{self.name.replace('-', '_')}"]
        return list(dict.fromkeys(names + ([f"-{self.short}"] if self.short else [])))


_STREAMS = (
    "0 none, 1 standard output, 2 standard error, 3 both; or for single local ranks, as 0:1,1:3"
)
_TIMES = {
    "start": "all hosts and workers to come",
    "collective": "one collective, compiling included",
    "beacon": "a sign of life of a worker",
    "stall": "the next step of a worker whose peers wait for it",
    "shutdown": "workers to leave after a failure or a signal, before they are killed",
}

FLAGS = (
    Flag(
        "nnodes",
        "N|MIN:MAX",
        "number of hosts; a range: a start takes those that are there, and goes on without a host "
        "that was lost, if there are restarts left (1)",
    ),
    Flag(
        "last-call-timeout",
        "SECONDS",
        "with a range of hosts: how long a start waits for more once MIN are there (30)",
    ),
    Flag("nproc-per-node", "N|auto|cpu|gpu", "workers on this host; auto: one a GPU or core (1)"),
    Flag("node-rank", "N", "number of this host, from 0; Slurm and indexed jobs tell it"),
    Flag("master-addr", "HOST", "the address of host 0 that the others reach; Slurm tells it"),
    Flag(
        "master-port",
        "PORT",
        "the first of three ports on host 0 (29400); with one host, the workers' MASTER_PORT",
    ),
    Flag("standalone", "", "one host, and nothing listens on the network"),
    Flag("rdzv-endpoint", "HOST[:PORT]", "--master-addr and --master-port in one"),
    Flag(
        "secret-file",
        "PATH",
        "the secret that all hosts know, needed with several; or REPLICAX_SECRET_FILE, or the "
        "secret itself in REPLICAX_SECRET",
    ),
    Flag("max-restarts", "N", "how many times all workers are started again after a failure (0)"),
    Flag(
        "on-preemption",
        "exit|restart",
        "what follows once the workers were told to leave, and have saved; a restart is not "
        "counted (exit)",
    ),
    Flag("log-dir", "PATH", "write each worker's output to files in a new folder in PATH"),
    Flag("tee", "STREAMS", f"streams that are shown and written to files: {_STREAMS} (3)", "t"),
    Flag("redirects", "STREAMS", "streams that are written to files alone (0)", "r"),
    Flag("local-ranks-filter", "N,N", "show the output of these local ranks alone"),
    Flag("module", "", "PROGRAM is a module, as in python -m", "m"),
    Flag("no-python", "", "PROGRAM is no Python program: run it as it is"),
    *(
        Flag(
            f"{name}-timeout",
            "SECONDS",
            f"how long to wait for {what} ({getattr(Timeouts(), name) or 'no limit'})",
        )
        for name, what in _TIMES.items()
    ),
)

FOREIGN = {
    "rdzv-backend": "the rendezvous is built in",
    "rdzv-id": "jobs are told apart by their secret and port",
    "rdzv-conf": "the time-outs have flags of their own",
    "monitor-interval": "workers are watched without polling",
    "start-method": "workers are fresh processes",
    "role": "all workers have one role",
    "run-path": "workers are fresh processes",
    "local-addr": "the address is found by connecting",
    "logs-specs": "use --log-dir, --tee and --redirects",
    "event-log-handler": "there is no event log",
    "numa-binding": "start it under numactl",
    "signals-to-handle": "SIGTERM, SIGINT, SIGHUP and SIGQUIT are handed on",
}
"""Flags of torchrun that are refused, each with the reason."""


@dataclasses.dataclass(frozen=True)
class Parsed:
    """The command line, as text.

    Attributes:
        values: What was given, by the name of the flag; the environment's where it was not.
        command: The program and its arguments.
        wants_help: Whether help was asked for.
    """

    values: Mapping[str, str]
    command: Sequence[str]
    wants_help: bool = False

    def is_set(self, name: str) -> bool:
        """Whether a switch is on."""
        return self.values.get(name, "") == _TRUE[0]


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> Parsed:
    """Takes the command line apart. The first word that is no flag is the program.

    Raises:
        InvalidArgumentError: A flag is unknown, lacks its value, or has one too many.
    """
    values = _from_environment(environment)
    rest = list(argv)
    while rest:
        word = rest[0]
        if word in ("-h", "--help"):
            return Parsed(values, [], wants_help=True)
        if word == "--" or not word.startswith("-"):
            break
        name, value, rest = _one(rest)
        values[name] = value
    return Parsed(values, rest[1:] if rest[:1] == ["--"] else rest)


def _one(words: list[str]) -> tuple[str, str, list[str]]:
    """The flag at the beginning, its value, and the other words."""
    word, rest = words[0], words[1:]
    option, joined, value = word.partition("=")
    if not word.startswith("--") and len(word) > len("-x"):  # -t3
        option, joined, value = word[:2], "=", word[2:].removeprefix("=")
    flag = _by_option().get(option)
    if flag is None:
        raise _unknown(option)
    if not flag.value:
        return flag.name, _switch(option, value if joined else _TRUE[0]), rest
    if joined:
        return flag.name, value, rest
    if not rest:
        raise InvalidArgumentError(describe(f"{option} lacks its value: {flag.value}."))
    return flag.name, rest[0], rest[1:]


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    values = {}
    for flag in FLAGS:
        if (text := environment.get(flag.variable)) is not None:
            values[flag.name] = text if flag.value else _switch(flag.variable, text)
    return values


def _switch(name: str, text: str) -> str:
    for state in (_TRUE, _FALSE):
        if text.lower() in state:
            return state[0]
    raise InvalidArgumentError(
        describe(f"{name} is {text!r}.", why="it is a switch.", fix="write 1 or 0.")
    )


@functools.cache
def _by_option() -> dict[str, Flag]:
    return {option: flag for flag in FLAGS for option in flag.options}


def _unknown(option: str) -> InvalidArgumentError:
    name = option.lstrip("-").replace("_", "-")
    if name in FOREIGN:
        message = describe(
            f"replicax run has no {option}.", why=f"{FOREIGN[name]}.", fix="leave it out."
        )
    else:
        fix = "`replicax run --help` lists the flags. Those of the program stand behind its name."
        message = describe(f"There is no flag {option}.", fix=fix)
    return InvalidArgumentError(message)


def usage() -> str:
    """The help text."""
    lines = [
        "usage: replicax run [FLAGS] [--] PROGRAM [ARGUMENTS]",
        "",
        "Starts PROGRAM as the workers of a job, and watches them. Each flag can also be given as",
        f"a variable of the environment: --max-restarts 3 as {PREFIX}MAX_RESTARTS=3.",
        "",
    ]
    for flag in FLAGS:
        names = ", ".join(option for option in flag.options if "_" not in option)
        lines.append(f"  {names} {flag.value}".rstrip())
        lines += textwrap.wrap(flag.help, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines) + "\n"
