"""Hosts JAX's coordination service in a process of its own; run by its path, not as a module.

When the service ends, the clients in the workers abort their processes. So it lives in a process
that has nothing else to do, and that outlives a killed master for as long as the workers need to
raise and leave. It imports neither replicax nor jax, only the extension module of jaxlib.

    python _service.py ADDRESS WORLD_SIZE LINGER_SECONDS

It prints `ready`, and ends when a line comes on its standard input, or some time after the end
of it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path


def main(address: str, world_size: str, linger_seconds: str) -> None:
    """Serves until the other end of standard input says so, or is gone."""
    spec = importlib.util.spec_from_file_location("compat", Path(__file__).with_name("_compat.py"))
    if spec is None or spec.loader is None:
        raise ImportError("the module beside this one is gone")
    compat = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compat)
    try:
        service = compat.start_coordination_service(address, int(world_size), float(linger_seconds))
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        os._exit(2)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        time.sleep(float(linger_seconds))
    os._exit(0 if service else 2)  # Its orderly end would wait for clients that are cut off.


if __name__ == "__main__":
    main(*sys.argv[1:])
