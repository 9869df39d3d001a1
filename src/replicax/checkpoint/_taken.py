"""Batches that were taken for a call that is not made: they have to be taken again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from replicax.checkpoint._checkpoint import Checkpoint
from replicax.checkpoint._leaves import find_leaves
from replicax.input import DistributedIterator


@contextlib.contextmanager
def put_back(checkpoint: Checkpoint) -> Iterator[None]:
    """Within it the iterators of a checkpoint are where they were at `DistributedIterator.mark`.

    In ``for batch in batches: handler.run(step, batch)`` a batch is taken before the call that uses
    it. If the job leaves before that call, the saved position must be the one before the batch.
    """
    leaves = [leaf.value for leaf in find_leaves(checkpoint.objects).found.values()]
    iterators = [leaf for leaf in leaves if isinstance(leaf, DistributedIterator)]
    steps = [iterator.step for iterator in iterators]
    for iterator in iterators:
        iterator._step = iterator.step_at_mark
    try:
        yield
    finally:
        for iterator, step in zip(iterators, steps, strict=True):
            iterator._step = step
