"""One row of another worker, for a worker that has none of its own to repeat as padding."""

from __future__ import annotations

import base64
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.cluster import gather
from replicax.input._split import HostBatch

_MOST_BYTES = 600_000
"""Of a row; messages between workers are short."""


def rows_of_others(own: HostBatch | None) -> HostBatch | None:
    """A batch of one padding row, as the first worker with rows has it. Collective.

    A real row is taken, because zeros could make an infinity or a NaN that the data does not hold.

    Args:
        own: What this worker has, or None.

    Raises:
        UnimplementedError: The batch holds nodes that cannot be told in JSON, or a row is too
            large.
    """
    sent = [record for record in gather("rows", _told(own)) if record is not None]
    first = sent[0]
    if "problem" in first:
        raise errors.UnimplementedError(
            errors.describe(
                "A worker has no rows at all, and does not know what a row looks like.",
                why=first["problem"],
                fix="Give every worker at least one row, or use the policy 'data', where every "
                "worker sees every batch.",
            )
        )
    arrays = [
        np.frombuffer(base64.b64decode(data), jnp.dtype(dtype)).reshape(shape)
        for dtype, shape, data in first["rows"]
    ]
    replicas = first["replicas"]
    structure = jax.tree.structure(_tree(first["tree"]))
    stacked = [np.repeat(array[None, None], replicas, axis=0) for array in arrays]
    return HostBatch(structure, stacked, np.zeros(replicas, np.int32))


def _told(own: HostBatch | None) -> dict[str, Any] | None:
    if own is None:
        return None
    rows = [array[0, 0] for array in own.stacked]
    size = sum(row.nbytes for row in rows)
    if size > _MOST_BYTES:
        return {"problem": f"One row of another worker has {size} bytes, too many to be sent."}
    try:
        tree = _told_tree(own.structure.unflatten([None] * len(rows)), leaf=None)
    except TypeError as error:
        return {"problem": str(error)}
    data = [(str(row.dtype), row.shape, base64.b64encode(row.tobytes()).decode()) for row in rows]
    return {"rows": data, "tree": tree, "replicas": len(own.counts)}


def _told_tree(node: Any, *, leaf: Any) -> Any:
    """A tree in terms of JSON: dictionaries by key, lists and tuples marked as such."""
    if node is leaf:
        return 0
    if type(node) is dict and all(isinstance(key, str) for key in node):
        return {"dict": {key: _told_tree(value, leaf=leaf) for key, value in node.items()}}
    if type(node) in (list, tuple):
        return {type(node).__name__: [_told_tree(value, leaf=leaf) for value in node]}
    message = f"The batches hold a {type(node).__name__}, which cannot be sent as a message."
    raise TypeError(message)


def _tree(told: Any) -> Any:
    if told == 0:
        return 0
    ((kind, inner),) = told.items()
    if kind == "dict":
        return {key: _tree(value) for key, value in inner.items()}
    return {"list": list, "tuple": tuple}[kind](_tree(value) for value in inner)
