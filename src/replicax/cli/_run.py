"""`replicax run`: from the command line to a launch."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from replicax._log import logger
from replicax.cluster import LaunchOptions, Timeouts, expand_hostlist, launch
from replicax.cluster._addresses import is_loopback, split_address
from replicax.cluster._joining import SECRET, SECRET_FILE, secret_of
from replicax.cluster._launcher._environment import available_cores, visible_gpus
from replicax.cluster._launcher._options import BOTH, NO_STREAMS, ON_PREEMPTION
from replicax.errors import InvalidArgumentError, describe

from ._flags import Parsed, parse, usage

DEFAULT_PORT = 29400
_NODE_RANKS = ("SLURM_NODEID", "JOB_COMPLETION_INDEX")
_NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")


def run(argv: Sequence[str]) -> int:
    """Runs `replicax run` with these arguments, and returns the exit code."""
    parsed = parse(argv, os.environ)
    if parsed.wants_help:
        sys.stdout.write(usage())
        return 0
    # What the master logs of a failure stands in the box at the end.
    logger("cluster").addHandler(logging.NullHandler())
    return launch(options_of(parsed, os.environ))


def options_of(parsed: Parsed, environment: Mapping[str, str]) -> LaunchOptions:
    """What the command line and the environment mean.

    Raises:
        InvalidArgumentError: Something is missing, out of range, or contradicts something else.
        NotFoundError: There is no such secret file.
    """
    least, nnodes = _nnodes(parsed.values.get("nnodes", "1"))
    host, port = _meeting_point(parsed, environment, nnodes)
    workers = _workers(parsed.values.get("nproc-per-node", "1"), environment)
    files, console = _streams(parsed, workers)
    return LaunchOptions(
        command=_command(parsed),
        workers=workers,
        nnodes=nnodes,
        min_nodes=None if least == nnodes else least,
        last_call=_seconds(parsed, "last-call-timeout", 30.0),
        node_rank=_node_rank(parsed, environment, nnodes),
        master_addr=host,
        master_port=port,
        max_restarts=_number(parsed, "max-restarts") or 0,
        on_preemption=_on_preemption(parsed),
        log_dir=parsed.values.get("log-dir"),
        console=console,
        files=files,
        secret=_secret(parsed, environment),
        timeouts=_timeouts(parsed),
    )


def _command(parsed: Parsed) -> list[str]:
    if not parsed.command:
        raise InvalidArgumentError(
            describe("There is no program to run.", fix="write replicax run [FLAGS] train.py.")
        )
    program, *arguments = parsed.command
    as_module, as_it_is = parsed.is_set("module"), parsed.is_set("no-python")
    if as_module and as_it_is:
        raise InvalidArgumentError(describe("--module and --no-python exclude each other."))
    if as_it_is:
        return [program, *arguments]
    if not as_module and not Path(program).exists():
        raise InvalidArgumentError(
            describe(
                f"There is no program {program!r} in {Path.cwd().name!r}.",
                fix="check the path; -m runs a module, and --no-python any other program.",
            )
        )
    return [sys.executable, "-u", *(["-m"] if as_module else []), program, *arguments]


def _nnodes(text: str) -> tuple[int, int]:
    """The least and the greatest number of hosts."""
    least, colon, most = text.partition(":")
    numbers = _whole("nnodes", least, least=1), _whole("nnodes", most if colon else least, least=1)
    if numbers[0] > numbers[1]:
        raise InvalidArgumentError(
            describe(f"--nnodes is {text!r}.", fix="write the smaller number first: MIN:MAX.")
        )
    return numbers


def _on_preemption(parsed: Parsed) -> str:
    text = parsed.values.get("on-preemption", ON_PREEMPTION[0])
    if text not in ON_PREEMPTION:
        fix = f"write {' or '.join(ON_PREEMPTION)}."
        raise InvalidArgumentError(describe(f"--on-preemption is {text!r}.", fix=fix))
    return text


def _workers(text: str, environment: Mapping[str, str]) -> int:
    gpus = len(visible_gpus(environment))
    if text == "gpu" and not gpus:
        raise InvalidArgumentError(
            describe("--nproc-per-node is 'gpu', but there is no GPU here.", fix="give a number.")
        )
    if text in ("auto", "cpu", "gpu"):
        return available_cores() if text == "cpu" else gpus or available_cores()
    return _whole("nproc-per-node", text, least=1)


def _meeting_point(parsed: Parsed, environment: Mapping[str, str], nnodes: int) -> tuple[str, int]:
    """Host and port of the launcher of rank 0."""
    given = [name for name in ("master-addr", "rdzv-endpoint") if parsed.values.get(name)]
    if parsed.is_set("standalone"):
        if nnodes > 1 or given:
            other = f"--{given[0]}" if given else f"--nnodes {nnodes}"
            raise InvalidArgumentError(
                describe(f"--standalone and {other} exclude each other.", fix="leave one out.")
            )
        return "127.0.0.1", 0
    port = _number(parsed, "master-port")
    host = parsed.values.get("master-addr") or _first_host(environment, nnodes)
    if endpoint := parsed.values.get("rdzv-endpoint"):
        if "master-addr" in given or port is not None:
            raise InvalidArgumentError(
                describe("--rdzv-endpoint and --master-addr or --master-port exclude each other.")
            )
        host, port = split_address(endpoint, default_port=DEFAULT_PORT if nnodes > 1 else 0)
    if nnodes == 1:
        return (host or "127.0.0.1").strip("[]"), port or 0
    if host is None or is_loopback(host.strip("[]")):
        raise InvalidArgumentError(
            describe(
                f"{nnodes} hosts would meet at {host or 'no address'}.",
                why="each host needs the address of host 0 that the others reach; a loopback "
                "address is each host's own.",
                fix="pass --master-addr, or --rdzv-endpoint host:port.",
            )
        )
    return host.strip("[]"), port or DEFAULT_PORT


def _first_host(environment: Mapping[str, str], nnodes: int) -> str | None:
    found = next((environment[name] for name in _NODE_LISTS if environment.get(name)), None)
    return expand_hostlist(found)[0] if found and nnodes > 1 else None


def _node_rank(parsed: Parsed, environment: Mapping[str, str], nnodes: int) -> int:
    rank = _number(parsed, "node-rank")
    if rank is not None or nnodes == 1:
        return rank or 0
    for name in _NODE_RANKS:
        if environment.get(name):
            return _whole(name, environment[name])
    raise InvalidArgumentError(
        describe(
            f"--nnodes is {nnodes}, but nothing says which of them this is.",
            fix="pass --node-rank: 0 on the host of --master-addr, 1 on the next.",
        )
    )


def _streams(parsed: Parsed, workers: int) -> tuple[dict[int, int], dict[int, int]]:
    """The streams that go to files, and those that are shown, for each local rank."""
    tee, redirects = (parsed.values.get(name) for name in ("tee", "redirects"))
    if (tee or redirects) and not parsed.values.get("log-dir"):
        raise InvalidArgumentError(
            describe("--tee and --redirects write files.", fix="say where: --log-dir PATH.")
        )
    teed = _mask("tee", tee, workers) if tee else dict.fromkeys(range(workers), BOTH)
    redirected = _mask("redirects", redirects, workers)
    shown = _shown(parsed, workers)
    files, console = {}, {}
    for local_rank in range(workers):
        only_files = redirected.get(local_rank, NO_STREAMS)
        files[local_rank] = teed.get(local_rank, NO_STREAMS) | only_files
        console[local_rank] = (BOTH & ~only_files) if local_rank in shown else NO_STREAMS
    return files, console


def _mask(name: str, text: str | None, workers: int) -> dict[int, int]:
    """`3` for all local ranks, or `0:1,1:3`."""
    found = dict.fromkeys(range(workers), NO_STREAMS)
    for part in (text or "").split(",") if text else []:
        rank, colon, streams = part.rpartition(":")
        mask = _whole(name, streams)
        if mask > BOTH or (not colon and part != text):
            raise InvalidArgumentError(
                describe(f"--{name} is {text!r}.", fix="write 0, 1, 2 or 3, or 0:1,1:3.")
            )
        ranks = [_whole(name, rank)] if colon else range(workers)
        found.update(dict.fromkeys(ranks, mask))
    return found


def _shown(parsed: Parsed, workers: int) -> set[int]:
    text = parsed.values.get("local-ranks-filter", "")
    if not text:
        return set(range(workers))
    return {_whole("local-ranks-filter", part) for part in text.split(",")}


def _secret(parsed: Parsed, environment: Mapping[str, str]) -> bytes | None:
    """The secret of the job, if one was given."""
    found = dict(environment)
    if path := parsed.values.get("secret-file"):
        found[SECRET_FILE] = path
    return secret_of(found) if found.get(SECRET_FILE) or found.get(SECRET) else None


def _timeouts(parsed: Parsed) -> Timeouts:
    names = [field.name for field in dataclasses.fields(Timeouts)]
    given = {name: parsed.values.get(f"{name}-timeout") for name in names}
    return Timeouts(
        **{name: _seconds(parsed, f"{name}-timeout", 0.0) for name in names if given[name]}
    )


def _seconds(parsed: Parsed, name: str, default: float) -> float:
    text = parsed.values.get(name)
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        what = f"--{name} is {text!r}."
        raise InvalidArgumentError(describe(what, fix="give seconds.")) from None


def _number(parsed: Parsed, name: str) -> int | None:
    text = parsed.values.get(name)
    return None if text is None else _whole(name, text)


def _whole(name: str, text: str, *, least: int = 0) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdecimal() and int(stripped) >= least):
        shown = name if name.isupper() else f"--{name}"
        raise InvalidArgumentError(
            describe(f"{shown} is {text!r}.", why=f"it is a whole number from {least}.")
        )
    return int(stripped)
