"""The same order of rows on all workers."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from replicax.cluster import agree, gather


def shuffle_alike(strategy: Any, *, shuffle: bool) -> None:
    """Make sure that NumPy's random numbers, which Keras shuffles with, are the same. Collective.

    Where the workers' differ, those of worker 0 count from now on.
    """
    if not (shuffle and strategy.replica_mesh.spans_processes):
        return
    kind, words, position, *gauss = np.random.get_state()  # noqa: NPY002 - Keras uses it
    state = [str(kind), np.asarray(words).tolist(), int(position), int(gauss[0]), float(gauss[1])]
    digest = hashlib.sha256(repr(state).encode()).hexdigest()
    told = agree("fit", {}, untold={"random state": digest})
    if any(record["random state"] != digest for record in told):
        first = gather("random state", state)[0]
        np.random.set_state((first[0], np.array(first[1], np.uint32), *first[2:]))  # noqa: NPY002
