"""The training program of the workers in these tests; `FAULT` says what goes wrong, on worker 1.

It prints a line of JSON for what happens, with the time.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import ordered
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax import cluster
from replicax.cluster import _compat, _first_collective, _startup
from replicax.errors import Origin, ReplicaxError

FAULT_STEP = 5

AT_START = {
    "connecting": (_compat, "connect_client"),
    "devices": (_startup, "devices"),
    "collective": (_first_collective, "compiled"),
}
"""Calls at the start in which worker 1 dies, by the name of the fault."""


def say(**fields):
    sys.stdout.write(json.dumps({"time": time.time(), **fields}) + "\n")
    sys.stdout.flush()


def join():
    env = os.environ
    rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
    secret = env["REPLICAX_SECRET"].encode()
    timeouts = cluster.Timeouts.from_json(json.loads(env["REPLICAX_TIMEOUTS"]))
    expected = env["ADDRESSES"].split(",") if "ADDRESSES" in env else None
    control = env["REPLICAX_CONTROL"]
    if "REPLICAX_COORDINATOR" not in env:
        return cluster.Runtime.join_without_launcher(rank, size, control, secret, timeouts)
    address = env["REPLICAX_COORDINATOR"]
    return cluster.Runtime.join(rank, size, control, address, secret, timeouts, addresses=expected)


def make_step(size):
    """A jitted mean over all workers, and its first argument."""
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("replica",))
    spec = PartitionSpec("replica")

    def mean(x):
        return jax.lax.pmean(x, "replica")

    step = jax.jit(jax.shard_map(mean, mesh=mesh, in_specs=spec, out_specs=spec))
    mine = np.full((jax.local_device_count(), size), jax.process_index(), np.float32)
    return step, jax.make_array_from_process_local_data(NamedSharding(mesh, spec), mine)


def go_wrong(fault):
    if os.environ.get("HOOK"):
        sys.excepthook = lambda *error: None  # as a library that prints tracebacks may do
    if fault:
        say(event="fault")
    if fault == "raise":
        raise KeyError("boom")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "stall":
        time.sleep(60)
    if fault == "exit":
        sys.exit(0)
    if fault == "silent exit":
        os._exit(0)
    if fault == "exit code":
        sys.exit(3)


def do_not_listen(how):
    """A survivor that does not wait in a guard when the failure comes."""
    if how == "busy":
        time.sleep(60)
    if how == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGURG})
        time.sleep(60)
    if how == "fork":
        child = os.fork()
        if child == 0:
            os._exit(0 if cluster.runtime() is None else 5)
        say(event="forked", code=os.waitpid(child, 0)[1], there=cluster.runtime() is not None)


def train(runtime, step, x, wait):
    culprit = int(os.environ.get("CULPRIT", "1"))
    fault = os.environ["FAULT"] if runtime.rank == culprit else ""
    survivor = os.environ.get("SURVIVOR") if runtime.rank == 0 else ""
    for number in range(int(os.environ.get("STEPS", "20"))):
        runtime.progress(number)
        if number == int(os.environ.get("FAULT_STEP", FAULT_STEP)):
            say(event="stepping")
            do_not_listen(survivor)
            go_wrong(fault)
        x = wait(step, x)
        time.sleep(0.002)
    say(event="result", value=float(np.asarray(x.addressable_data(0)).max()))


def in_main(runtime, step, x):
    def wait(step, x):
        with runtime.guard():  # A small program runs, and waits, where it is called.
            return step(x).block_until_ready()

    def wait_unguarded(step, x):
        return step(x).block_until_ready()

    train(runtime, step, x, wait_unguarded if os.environ.get("LOOP") == "unguarded" else wait)


def in_thread(runtime, step, x):
    """The loop in a thread of the program's own."""
    errors = []

    def loop():
        try:
            train(runtime, step, x, lambda step, x: runtime.wait(step(x)))
        except Exception as error:  # noqa: BLE001 - raised in the main thread
            errors.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def move(name, address):
    """Into a network of its own, on a host whose name is its address."""
    libc = ctypes.CDLL(None, use_errno=True)
    if name:
        with Path("/run/netns", name).open() as space:
            assert libc.setns(space.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
    clone_newuts = 0x04000000
    assert libc.unshare(clone_newuts) == 0, os.strerror(ctypes.get_errno())
    socket.sethostname(address)


def main():
    env = os.environ
    if "ADDRESS" in env:
        move(env.get("NETWORK"), env["ADDRESS"])
    say(event="born")
    jax.config.update("jax_num_cpu_devices", int(env.get("DEVICES", "1")))
    jax.config.update("jax_enable_x64", bool(env.get("X64")))
    if env.get("EARLY"):
        jax.devices()
    time.sleep(float(env.get("LATE", "0")))
    try:
        if env["FAULT"] in AT_START and env["RANK"] == "1":
            module, name = AT_START[env["FAULT"]]
            setattr(module, name, lambda *_: go_wrong("kill"))
        if env["FAULT"] == "no collective" and env["RANK"] == "1":
            _first_collective.compiled = lambda: lambda: time.sleep(60)
        runtime = join()
        say(event="joined")
        if env["FAULT"] == "before" and runtime.rank == 1:
            go_wrong("kill")
        if env.get("LOOP") == "order":
            ordered.work(runtime, say)
            return
        step, x = make_step(int(env.get("SIZE", "2000")))
        loop = in_thread if env.get("LOOP") == "thread" else in_main
        loop(runtime, step, x)
    except ReplicaxError as error:
        origin = error.origin or Origin()
        say(
            event="raised",
            classes=[cls.__name__ for cls in type(error).__mro__],
            kind=getattr(error, "kind", None),
            task=origin.task,
            step=origin.step,
            text=str(error),
            remote=getattr(error, "remote_traceback", None),
        )
        raise
