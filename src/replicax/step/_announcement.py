"""What a step says in the log when it has been compiled: how long it took, and what it moves."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from replicax import _compilation_cache, _log
from replicax.collectives import Entry
from replicax.step._trace import Traced

if TYPE_CHECKING:
    from replicax.step._program import Program

_COMPILED = "/jax/core/compile/backend_compile_duration"
_UNIT = 1024.0

_LOGGER = _log.logger("step")


class _Announcer(threading.local):
    """What this thread is about to compile. jax tells how long that took, in the same thread."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[float, str], None]] = {}


_NOW = _Announcer()
_LOCK = threading.Lock()
_LISTENERS: list[Any] = []


def compiling(program: Program, traced: Traced) -> None:
    """Notes that jax is about to compile this trace. Costs little where nobody listens."""
    if not _LOGGER.isEnabledFor(logging.INFO):
        return
    with _LOCK:
        if not _LISTENERS:
            jax.monitoring.register_event_duration_secs_listener(_on_duration)
            _LISTENERS.append(_on_duration)
    name, mesh = program.function.__name__, program._mesh
    count, proof = len(program.traces), sum(run.proof_seconds for run in traced.runs)
    began = f"Step `{name}`: traced in {traced.seconds - proof:.2f} s, proved in {proof:.2f} s"
    facts = {
        "program": None if count == 1 else f"number {count} of this step: it got other shapes",
        "replicas": "1" if mesh is None else str(mesh.num_replicas),
        "variables": f"{len(traced.written)} written, {len(traced.used)} used",
        "collectives": requested(traced.entries),
    }
    by_chief = mesh is None or 0 in mesh.local_replicas

    def tell(seconds: float, cache: str) -> None:
        title = f"{began}, compiled in {seconds:.2f} s, compile cache: {cache}"
        _log.tell(title, facts, by_chief=by_chief)

    _NOW.waiting[f"jit({name})"] = tell
    _compilation_cache.watch()


def _on_duration(event: str, duration_secs: float, **facts: Any) -> None:
    if event == _COMPILED and (tell := _NOW.waiting.pop(facts.get("fun_name", ""), None)):
        tell(duration_secs, _compilation_cache.found())


def requested(entries: tuple[Entry, ...]) -> str:
    """The collectives that a step asks for, in words.

    Examples:
        >>> requested((Entry(1, 100, "all_reduce", "MEAN", ("float32",), ((2, 128),)),))
        'all_reduce MEAN x1, 1.0 KiB a replica'
        >>> requested(())
        'none: nothing crosses replicas'
    """
    if not entries:
        return "none: nothing crosses replicas"
    kinds = Counter(f"{entry.kind} {entry.op or ''}".strip() for entry in entries)
    total = sum(map(_bytes, entries))
    listed = ", ".join(f"{kind} x{count}" for kind, count in kinds.items())
    return f"{listed}, {_size(total)} a replica"


def _bytes(entry: Entry) -> int:
    leaves = zip(entry.dtypes, entry.shapes, strict=True)
    return sum(np.dtype(jax.numpy.dtype(dtype)).itemsize * math.prod(s) for dtype, s in leaves)


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < _UNIT:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= _UNIT
    return f"{count:.1f} GiB"
