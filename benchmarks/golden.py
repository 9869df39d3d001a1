"""What XLA makes of the five workloads: a guard against regressions that measures no time.

    python benchmarks/golden.py             # beside the golden values
    python benchmarks/golden.py --update    # write them

Small versions of the workloads are compiled for two replicas. Counted are the all-reduces of the
optimised program, the arrays and bytes that they move, and the copies that are made: of arrays, and
into packs. Both generations of jax give the same numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import jax
from contenders import functional_step
from workloads import WORKLOADS

import replicax as rx
from replicax.collectives import collectives_in

FILE = Path(__file__).with_name("golden.json")
PACKED = " in packs"
NAMES = (*WORKLOADS, f"layers{PACKED}")
_COPIES = re.compile(
    r" = (?P<dtype>[a-z]+\d*)\[(?P<shape>[\d,]*)\]\S* (?P<kind>copy|concatenate)\("
)
_BITS = re.compile(r"\d+")

Facts = dict[str, dict[str, int]]


def facts(strategy: rx.Strategy, name: str) -> dict[str, int]:
    """The numbers of one workload, or of one with packed state."""
    workload = WORKLOADS[name.removesuffix(PACKED)](small=True)
    run, state, batch = functional_step(strategy, workload, packed=name.endswith(PACKED))
    text = run.lower(state, batch).compile(_compiler_options()).as_text()
    collectives = collectives_in(text)
    found = {
        "all-reduces": len([each for each in collectives if each.kind == "all-reduce"]),
        "other collectives": len([each for each in collectives if each.kind != "all-reduce"]),
        "arrays": sum(len(each.shapes) for each in collectives),
        "bytes": sum(each.bytes for each in collectives),
    }
    for kind in ("copy", "concatenate"):
        sizes = [_bytes(match) for match in _COPIES.finditer(text) if match["kind"] == kind]
        found |= {f"{kind}: number": len(sizes), f"{kind}: bytes": sum(sizes)}
    return found


def _compiler_options() -> dict[str, Any]:
    """The same wherever this runs; machine code is made quickly, which changes no count."""
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    if jax.__version__.startswith("0.10."):
        options["xla_cpu_use_fusion_emitters"] = True  # Its default; other releases have no choice.
    return options


def _bytes(match: re.Match[str]) -> int:
    bits = _BITS.search(match["dtype"])
    item = int(bits.group()) // 8 if bits is not None else 1
    return item * math.prod(int(length) for length in match["shape"].split(",") if length)


def golden() -> Facts:
    """The values in the file."""
    found: Facts = json.loads(FILE.read_text())
    return found


def differences(name: str, found: dict[str, int], expected: dict[str, int]) -> list[str]:
    """A line for each number that differs."""
    return [
        f"{name}, {what}: {found.get(what)}, but the golden value is {expected.get(what)}"
        for what in sorted({*found, *expected})
        if found.get(what) != expected.get(what)
    ]


def main() -> int:
    """Compare, or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the values")
    update = parser.parse_args().update
    from measuring import cpu_strategy  # noqa: PLC0415 - the test has a strategy of its own

    strategy = cpu_strategy()
    found = {name: facts(strategy, name) for name in NAMES}
    if update:
        FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"The golden values are in {FILE.name}.")
        return 0
    expected = golden()
    lines = [
        line for name in NAMES for line in differences(name, found[name], expected.get(name, {}))
    ]
    print("\n".join(lines) or "All as in the golden values.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
