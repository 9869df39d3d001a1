"""`replicax explain`: what a step of a script or module is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from replicax.inspection import Explanation, Fabric

from ._target import load

_DESCRIPTION = """\
Shows a step without running it: what runs on each replica, what crosses between them and why the
rest is equal, the collectives with their bytes, memory and times.

TARGET names a function without parameters that returns `(step, arguments)`: the `rx.function`, and
a tuple of what it is called with.
"""


def explain(argv: Sequence[str]) -> int:
    """Runs `replicax explain` with these arguments, and returns the exit code."""
    options = _parser().parse_args(argv)
    shown = _shown(options)
    if options.svg is not None:
        options.svg.write_text(shown.to_svg(), encoding="utf-8")
    if options.html is not None:
        options.html.write_text(shown.to_html(), encoding="utf-8")
    sys.stdout.write(shown.to_json() + "\n" if options.json else str(shown))
    return 0


def _shown(options: argparse.Namespace) -> Explanation:
    from replicax.inspection import explain as explained  # noqa: PLC0415 - the name is ours here

    step, arguments = load(options.target)
    return explained(
        step,
        *arguments,
        replicas=options.replicas,
        remainder=options.remainder or None,
        fabric=Fabric(options.bandwidth * 1e9, options.latency * 1e-6),
        compute_seconds=options.compute_seconds,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="replicax explain",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Fabric()
    parser.add_argument("target", metavar="TARGET", help="script.py:function or module:function")
    parser.add_argument("--replicas", type=int, help="show it for that many, which need not exist")
    parser.add_argument("--remainder", action="store_true", help="that of a padded batch too")
    parser.add_argument(
        "--bandwidth",
        type=float,
        default=usual.bandwidth / 1e9,
        help="GB/s that a replica sends (default: %(default)g)",
    )
    parser.add_argument(
        "--latency",
        type=float,
        default=usual.latency * 1e6,
        help="microseconds of a message (default: %(default)g)",
    )
    parser.add_argument(
        "--compute-seconds", type=float, help="what a replica computes in a step; for efficiencies"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--svg", type=Path, help="write a picture to this file")
    parser.add_argument("--html", type=Path, help="write a page with all of it to this file")
    return parser
