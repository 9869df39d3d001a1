"""What the workers of `test_run_workers.py` run; it imports no jax, so they start quickly."""

from __future__ import annotations

import os
import signal
import sys
import threading


class NoWayBackError(Exception):
    """It can be pickled, but not unpickled."""

    def __init__(self, one, other):
        super().__init__(f"no way back from {one} to {other}")


def mixed(text):
    """What each worker does depends on its rank."""
    rank = int(os.environ["RANK"])
    sys.stdout.write(f"worker {rank} of {os.environ['WORLD_SIZE']} {text}\n")
    sys.stderr.write("to stderr\n")
    if rank == 1:
        raise KeyError("boom")
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 3:
        raise NoWayBackError(1, 2)
    if rank == 4:
        return threading.Lock()
    return {"rank": rank, "devices": os.environ["JAX_NUM_CPU_DEVICES"]}


def freeze():
    """Worker 1 stops itself."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    return "left"


def devices():
    """The devices that jax finds."""
    import jax

    return jax.device_count(), jax.default_backend()
