"""A dataset that was sharded by hand is given to a strategy that shares it out again.

Each of two pipelines would read half of a half, and half of the rows would never be seen.
"""

from __future__ import annotations

import numpy as np

import replicax as rx

SEEN = "D7", "Lightning-AI/pytorch-lightning#15734"
NAMED_BY = rx.errors.InvalidArgumentError, "is a shard already", "rows would be lost"


def make():
    files = [np.arange(4) + 4 * i for i in range(4)]
    mine = rx.data.from_iterable(lambda: iter(files)).shard(2, 0)
    return rx.input.plan_input(mine.batch(4), num_replicas=2, num_pipelines=2)  # fault
