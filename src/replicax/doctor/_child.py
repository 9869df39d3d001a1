"""The child that starts jax's devices, looks at them, and has them exchange numbers.

    python -m replicax.doctor._child FILE quick|whole SECONDS

It writes what it knows after each part, so that its parent knows how far it came if it hangs.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import jax

from ._exchange import of_group, pairs_of

_MOST_LINES, _MOST_PAIRS = 20, 120


class _Notes(logging.Handler):
    """Keeps what jax warns of while it starts."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record."""
        self.lines.append(record.getMessage()[:500])


def main(path: Path, *, is_quick: bool, seconds: float) -> None:
    """Looks at the devices, and writes what it finds to the file."""
    deadline = time.monotonic() + seconds
    notes, found = _Notes(), dict[str, Any](stage="starting jax's devices")
    logger = logging.getLogger("jax")
    logger.addHandler(notes)
    _write(path, found)
    began = time.monotonic()
    try:
        devices = jax.local_devices()
    except Exception as error:  # noqa: BLE001 - told in the report
        found["error"] = f"{type(error).__name__}: {error}"[:2000]
        _write(path, found | {"notes": notes.lines[:_MOST_LINES], "stage": "over"})
        return
    found |= {
        "seconds": time.monotonic() - began,
        "notes": notes.lines[:_MOST_LINES],
        "platform": devices[0].platform,
        "devices": [{"id": one.id, "kind": one.device_kind} for one in devices],
    }
    if not is_quick and len(devices) > 1:
        found["stage"] = "an all-reduce over all devices"
        _write(path, found)
        found["group"] = of_group(devices)
        wanted = pairs_of(len(devices), _MOST_PAIRS)
        found["pairs"], found["wanted"] = [], len(wanted)
        for first, second in wanted:
            if time.monotonic() > deadline:
                break
            found["stage"] = f"an all-reduce over devices {first} and {second}"
            _write(path, found)
            measured = of_group([devices[first], devices[second]])
            found["pairs"].append({"devices": [first, second], **measured})
    _write(path, found | {"stage": "over"})


def _write(path: Path, found: dict[str, Any]) -> None:
    """The facts as a whole, or those before."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(found))
    os.replace(new, path)  # noqa: PTH105 - one call


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_quick=sys.argv[2] == "quick", seconds=float(sys.argv[3]))
