"""Batches are split and placed on the devices while the step before them runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicax._threads import Ahead
from replicax.input._agreed import AgreedFeed
from replicax.input._split import HostBatch
from replicax.values import ReplicaMesh


def placed_ahead(
    batches: Iterator[tuple[int, HostBatch]], mesh: ReplicaMesh, size: int
) -> Iterator[tuple[int, Any]]:
    """The batches on the devices, up to `size` of them placed in advance by a thread.

    Placing copies rows to devices and runs no program, so it cannot wait for a collective.
    Exceptions arrive in their turn.
    """
    placed = ((step, batch.place(mesh)) for step, batch in batches)
    return Ahead(placed, size) if size else placed


def placed_together(
    feed: AgreedFeed, epoch: int, step: int, mesh: ReplicaMesh, size: int
) -> Iterator[tuple[int, Any]]:
    """The batches that all workers agree on, on the devices; up to `size` are read in advance.

    Workers meet where batches are taken, not in the thread, so a pass may be left at any step.
    """
    batches = feed.read(epoch, step)
    if size:
        batches = Ahead(batches, size)
    while True:
        step, own = next(batches, (step, None))
        agreed = feed.agreed(own)
        if agreed is None:
            return
        yield step, agreed.place(mesh)
