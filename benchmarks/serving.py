"""The side of a program that trains when it is asked to, so that several libraries take turns.

It needs nothing but Python, as it runs in the environments of other libraries too. Requests come
as lines of JSON on standard input, answers go to standard output; while it waits it does nothing.
What a library prints goes to standard error.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

Advance = Callable[[int], float]
"""Trains for so many steps, waits for the last one, and returns its loss."""


def options(description: str) -> argparse.ArgumentParser:
    """What every such program is told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--data", type=Path, required=True, help="initial weights and the batch")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--small", action="store_true", help="fewer numbers, for tests")
    return parser


def answers() -> TextIO:
    """Where answers go; from now on, what is printed goes to standard error. To be called first."""
    sys.stdout.flush()
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


def serve(makers: Mapping[str, Callable[[], Advance]], version: str, out: TextIO) -> None:
    """Answer until the input ends. A contender is made when it is first asked for.

    Args:
        makers: The contenders by name.
        version: Of the library, for the page.
        out: What `answers` gave.
    """

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=out, flush=True)

    say({"contenders": list(makers), "version": version})
    contenders: dict[str, Advance] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        name = asked["contender"]
        if name not in contenders:
            contenders[name] = makers[name]()
        say(_turn(contenders[name], asked["steps"], asked["warm"]))


def _turn(advance: Advance, steps: int, warm: int) -> dict[str, float]:
    """Some steps that are not measured, because the caches were another's, and some that are."""
    gc.collect()
    gc.disable()
    try:
        if warm:
            advance(warm)
        start = time.perf_counter()
        loss = advance(steps)
        return {"seconds": (time.perf_counter() - start) / steps, "loss": loss}
    finally:
        gc.enable()
