"""`replicax doctor`: what is wrong with this machine, or with the workers of a job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

_DESCRIPTION = """\
Looks at versions, devices and what hides them, limits, names, ports and proxies; has the devices
exchange numbers, and a process die. Says what is wrong, why it matters, and what to do.

Under `replicax run -m replicax doctor` all workers are looked at, and worker 0 reports. The exit
code is 1 where something would fail, else 0.
"""


def doctor(argv: Sequence[str]) -> int:
    """Runs `replicax doctor` with these arguments, and returns the exit code."""
    from replicax.doctor import examine  # noqa: PLC0415 - other commands start without it

    options = _parser().parse_args(argv)
    report = examine(
        quick=options.quick,
        alone=options.alone,
        devices=options.devices,
        hosts=options.host,
        port=options.port,
    )
    if report.rank:
        return 0  # Worker 0 speaks for all.
    sys.stdout.write((report.to_json() if options.json else str(report)) + "\n")
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="replicax doctor",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="without what takes seconds")
    parser.add_argument(
        "--alone", action="store_true", help="this process only, even where it is one of a job"
    )
    parser.add_argument(
        "--devices", type=int, metavar="N", help="how many each process should see; else it fails"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with all facts")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="a host of the job, to be looked up and connected to; may be repeated",
    )
    parser.add_argument(
        "--port", type=int, help="the first of the three ports that host 0 listens on (29400)"
    )
    return parser
