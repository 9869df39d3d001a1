"""`rx.trace`: what runs inside of a block, as a trace for Perfetto."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from replicax.cluster import guard
from replicax.collectives import TURNS
from replicax.errors import FailedPreconditionError, describe
from replicax.recording import RECORDER, snapshot
from replicax.recording._recorder import RUN, TAKEN_BACK

MOST = 100_000
"""Entries of one trace; the ones after them are left out."""

_busy = threading.Lock()


@contextlib.contextmanager
def trace(path: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Writes what runs inside as a trace for Perfetto or Chrome. Context: any. Not collective.

    Each process is one worker in it, with one row for the steps that it starts and one a replica;
    a step lists its collectives. Steps are started ahead of the devices, so without `wait` a slice
    is what starting took. `jax.profiler` shows what the devices did meanwhile.

    Several workers write a file each, `trace.worker-1.json` beside `trace.worker-0.json`;
    `replicax inspect trace.worker-*.json --trace trace.json` makes one of them, on one clock.
    A file is written, too, where the block raises.

    Args:
        path: The file, such as `trace.json`.
        wait: Wait for each step on each replica, so that a slice is what the step took. Nothing
            overlaps then, and the whole takes longer.

    Raises:
        FailedPreconditionError: Another trace is being made.
        OSError: The file cannot be written.

    Examples:
        >>> import json, pathlib, tempfile
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> step = rx.function(lambda x: strategy.run(jnp.square, args=(x,)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "trace.json")
        ...     with rx.trace(path):
        ...         _ = step(2.0)
        ...     events = json.loads(path.read_text())["traceEvents"]
        >>> [event["tid"] for event in events if event["ph"] == "X"]  # the steps, two replicas
        [0, 10, 11]
    """
    if not _busy.acquire(blocking=False):
        raise FailedPreconditionError(
            describe("Another trace is being made.", fix="end it first; traces do not nest.")
        )
    entries: list[Any] = []
    ends: dict[int, list[int]] = {}
    usual = RECORDER.append

    def append(entry: Any) -> None:
        usual(entry)
        if len(entries) < MOST:
            entries.append(entry)

    def wait_for(entry: Any, output: Any) -> None:
        with guard():
            ended = [_ended(parts) for parts in _by_replica(output)]
        if entries and entries[-1] is entry:
            ends[id(entry)] = ended

    try:
        RECORDER.append = append
        RECORDER.wait = wait_for if wait else None
        RECORDER.is_traced = True
        TURNS.changes += 1
        yield
    finally:
        RECORDER.append, RECORDER.wait, RECORDER.is_traced = usual, None, False
        _busy.release()
        _write(Path(path), entries, ends)


def _by_replica(output: Any) -> list[list[jax.Array]]:
    """The parts of the arrays on each device of this process, in the order of the replicas."""
    parts: dict[jax.Device, list[jax.Array]] = {}
    order: list[jax.Device] = []
    for leaf in jax.tree.leaves(output):
        if isinstance(leaf, jax.Array):
            mesh = getattr(leaf.sharding, "mesh", None)
            order = order or ([] if mesh is None else list(mesh.devices.flat))
            for shard in leaf.addressable_shards:
                parts.setdefault(shard.device, []).append(shard.data)
    return [parts[device] for device in order or parts if device in parts]


def _ended(parts: list[jax.Array]) -> int:
    jax.block_until_ready(parts)
    return time.monotonic_ns()


def _write(path: Path, entries: list[Any], ends: dict[int, list[int]]) -> None:
    from ._merged import merged  # noqa: PLC0415 - tables, for the end of a trace only
    from ._records import parsed  # noqa: PLC0415 - the same
    from ._timeline import trace_text  # noqa: PLC0415 - the same

    kept = [entry for entry in entries if entry[RUN] != TAKEN_BACK]
    record = parsed(snapshot("traced", entries=kept), "this process")
    ended = {
        (record.worker, number): ends[id(entry)]
        for number, entry in enumerate(kept)
        if id(entry) in ends
    }
    if record.workers > 1:
        path = path.with_name(f"{path.stem}.worker-{record.worker}{path.suffix}")
    path.write_text(trace_text(merged([record]), ends=ended), encoding="utf-8")
