"""`replicax verify`: whether a step of a script or module does its work on all replicas."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from replicax.verification import Report
from replicax.verification import verify as verified

from ._target import other_result, returned_by

_DESCRIPTION = """\
Runs a training step on its own data, changes nothing, and checks that it does on all replicas what
it does on one device: rows, equal state, collectives, parity, random streams, busy devices.

TARGET names a function without parameters that returns `(strategy, step, state, dataset)`, the
arguments of `rx.verify`; or a report of `rx.verify`. Ends with 0 if no check failed, else with 1.
"""
_ARGUMENTS = 4


def verify(argv: Sequence[str]) -> int:
    """Runs `replicax verify` with these arguments, and returns the exit code."""
    options = _parser().parse_args(argv)
    report = _report(options)
    if options.html is not None:
        report.write_html(options.html)
    sys.stdout.write(report.to_json() + "\n" if options.json else str(report))
    return 0 if report.ok else 1


def _report(options: argparse.Namespace) -> Report:
    returned = returned_by(options.target)
    if isinstance(returned, Report):
        return returned
    if not isinstance(returned, tuple) or len(returned) != _ARGUMENTS:
        raise other_result(
            options.target,
            returned,
            "return `(strategy, step, state, dataset)`, or what `rx.verify` returns.",
        )
    return verified(*returned, one_device=options.one_device)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="replicax verify",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="TARGET", help="script.py:function or module:function")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, help="write a page to this file")
    parser.add_argument(
        "--no-one-device",
        dest="one_device",
        action="store_false",
        help="do not run the step on one device",
    )
    return parser
