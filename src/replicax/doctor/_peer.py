"""One of two workers, of which the second one dies.

    replicax run --nproc-per-node 2 -m replicax.doctor._peer FILE

The first one writes when it heard of that. Both processes are on one host, where the monotonic
clock is the same for all.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import jax

from replicax.cluster import runtime
from replicax.errors import WorkerFailedError
from replicax.strategies import MultiWorkerMirroredStrategy

from ._exchange import of_group

_ALONE_S = 0.5


def main(path: Path) -> None:
    """Exchanges numbers with the other, then dies, or waits for the one that does."""
    MultiWorkerMirroredStrategy()
    worker = runtime()
    if worker is None:
        raise SystemExit("This is a worker of `replicax run`.")
    measured = of_group(jax.devices())
    died = path.with_suffix(".died")
    if worker.rank == 1:
        time.sleep(_ALONE_S)  # The other is in its collective by now.
        died.write_text(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    kind = "not noticed"
    try:
        with worker.guard():
            of_group(jax.devices())
    except WorkerFailedError as error:
        kind = error.kind
    seconds = time.monotonic() - float(died.read_text())
    told = {"seconds": seconds, "kind": kind, "beacon": worker.timeouts.beacon, **measured}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(told))
    new.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
