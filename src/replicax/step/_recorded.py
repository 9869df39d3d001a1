"""What the flight recorder is told of steps and of collectives of the eager runner."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp

from replicax.cluster import site_here
from replicax.collectives import Entry
from replicax.recording import RECORDER, Collective, Subject
from replicax.values import ReplicaMesh

_MOST_TRACES = 8


def subject_of_step(name: str, mesh: ReplicaMesh | None, *, is_awaited: bool) -> Subject:
    """What the entries of a program are about; made at its first call.

    Args:
        name: The name of the user's function.
        mesh: The replicas that it runs on, or None.
        is_awaited: Whether each run is waited for.
    """
    return RECORDER.subject(
        "step",
        name,
        f"{site_here()} (first call)",
        is_shared=mesh is not None and mesh.spans_processes,
        is_awaited=is_awaited,
        replicas=() if mesh is None else mesh.local_replicas,
    )


def note_trace(subject: Subject, entries: Sequence[Entry]) -> None:
    """Note the collectives of one trace of a step, in order."""
    if len(subject.collectives) < _MOST_TRACES:
        subject.collectives.append(tuple(map(_collective, entries)))


def subject_of_meeting(entry: Entry, mesh: ReplicaMesh) -> Subject:
    """What the entry of a collective of the eager runner is about."""
    subject = RECORDER.subject(
        "collective",
        f"{entry.kind} {entry.op or ''}".strip(),
        str(entry.call_site or "not known"),
        is_shared=mesh.spans_processes,
        replicas=mesh.local_replicas,
    )
    note_trace(subject, [entry])
    return subject


def _collective(entry: Entry) -> Collective:
    sizes = [
        math.prod(shape) * _bytes_of(dtype)
        for shape, dtype in zip(entry.shapes, entry.dtypes, strict=True)
    ]
    return Collective(
        kind=entry.kind,
        op=entry.op,
        group_key=entry.group_key,
        instance_key=entry.instance_key,
        arrays=len(sizes),
        bytes=sum(sizes),
        site=str(entry.call_site or "not known"),
    )


def _bytes_of(dtype: str) -> int:
    """Bytes of an element; a random key has two words."""
    return 8 if dtype.startswith("key<") else int(jnp.dtype(dtype).itemsize)
