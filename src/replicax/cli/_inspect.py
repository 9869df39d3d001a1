"""`replicax inspect`: what the workers of a job ran last."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from replicax.cluster import look_at_job
from replicax.cluster._joining import SECRET_FILE, secret_of
from replicax.cluster._launcher._job_file import JOB_FILE, is_running
from replicax.cluster._startup import table_of
from replicax.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    describe,
)
from replicax.inspection._merged import Inspection, merged
from replicax.inspection._records import parsed, read
from replicax.inspection._survey import SHOWN, survey, to_json
from replicax.inspection._timeline import trace_text
from replicax.recording import default_folder

_DESCRIPTION = """\
Shows what the workers of a job ran last, side by side, where they part, who is late, and where
each stands.

JOB is a running job: the folder that `replicax run` names, or the address of its master, with the
secret in REPLICAX_SECRET_FILE. Or it is what workers have written: a folder, records or traces.
Without it, the running job of this user on this host is taken.
"""


def inspect(argv: Sequence[str]) -> int:
    """Runs `replicax inspect` with these arguments, and returns the exit code: 1 if they part."""
    options = _parser().parse_args(argv)
    seen = _seen(options)
    if options.trace is not None:
        options.trace.write_text(trace_text(seen), encoding="utf-8")
    sys.stdout.write(to_json(seen) + "\n" if options.json else survey(seen, last=options.last))
    return 0 if seen.parted is None else 1


def _seen(options: argparse.Namespace) -> Inspection:
    environment = dict(os.environ)
    if options.secret_file:
        environment[SECRET_FILE] = options.secret_file
    jobs = options.job or [_only_job()]
    if len(jobs) == 1:
        path = Path(jobs[0])
        if not path.exists() and ":" in jobs[0]:
            return _live(jobs[0], _secret(environment), options.timeout)
        if (path / JOB_FILE).is_file():
            return _of_folder(path, options.timeout)
    return merged([record for job in jobs for record in read(Path(job))])


def _secret(environment: dict[str, str]) -> bytes:
    try:
        return secret_of(environment)
    except FailedPreconditionError as error:
        raise InvalidArgumentError(
            describe(
                "A running job is inspected with its secret, and there is none here.",
                fix=f"name its file with --secret-file, or in {SECRET_FILE}; a job of "
                "`replicax run` on this host is found without an address.",
            )
        ) from error


def _only_job() -> str:
    """The folder of the one job of this user that runs on this host.

    Raises:
        NotFoundError: There is none.
        InvalidArgumentError: There are several.
    """
    files = default_folder().glob(f"*/{JOB_FILE}")
    found = sorted(str(file.parent) for file in files if is_running(file))
    if not found:
        raise NotFoundError(
            describe("No job of yours runs on this host.", fix="name a folder, or an address.")
        )
    if len(found) > 1:
        raise InvalidArgumentError(
            describe("Several jobs of yours run on this host.", fix=f"name one: {found}.")
        )
    return found[0]


def _of_folder(folder: Path, timeout: float) -> Inspection:
    """A job by its folder: as it runs, or what it has left."""
    try:
        told = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
        control, secret_file = str(told["control"]), str(told["secret_file"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{str(folder / JOB_FILE)!r} tells of no job: {error!r}."
        raise InvalidArgumentError(describe(what)) from error
    try:
        return _live(control, secret_of({SECRET_FILE: secret_file}), timeout)
    except (UnavailableError, NotFoundError):
        if not list(folder.glob("worker-*.json")):
            raise
        return merged(read(folder))


def _live(address: str, secret: bytes, timeout: float) -> Inspection:
    look = look_at_job(address, secret, patience=timeout)
    records = [parsed(record, f"worker {rank}") for rank, record in look.records.items()]
    if not records:
        raise UnavailableError(
            describe(
                f"None of the {look.workers} workers of the job answered.",
                table=table_of(look.states),
                why="they have not joined yet, have left, or stand still.",
            )
        )
    return merged(records, silent=look.silent, states=look.states, failure=look.failure)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="replicax inspect",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", metavar="JOB", nargs="*", help="a job, or records of one")
    parser.add_argument("--json", action="store_true", help="print JSON, with the records")
    parser.add_argument("--trace", type=Path, help="write a trace for Perfetto to this file")
    parser.add_argument(
        "--last", type=int, default=SHOWN, help="entries that are shown (default: %(default)s)"
    )
    parser.add_argument("--secret-file", help="the secret of a running job, for an address")
    parser.add_argument(
        "--timeout", type=float, default=5.0, help="seconds to wait for the master (%(default)g)"
    )
    return parser
