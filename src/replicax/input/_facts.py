"""What a place in a dataset depends on: the facts that tell one dataset from another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import numpy as np

from replicax.data import Dataset
from replicax.input._sources import Elements


def facts_of(source: Elements) -> dict[str, Any]:
    """The facts of a source, which can be written as JSON.

    Returns:
        `elements` of an epoch and `source_length`, None if unknown; `files`, a digest of their
        names without folders; `order`, a digest of the first rows of two epochs, or the chain.
    """
    files = source.files
    return {
        "elements": source.num_elements,
        "source_length": source.source_length,
        "files": None if files is None else digest(PurePath(f).name.encode() for f in files),
        "order": _order_of_rows(source),
    }


def digest(parts: Iterable[bytes]) -> str:
    """A number of some bytes, as 16 hexadecimal digits."""
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]


def _order_of_rows(source: Elements) -> str | None:
    if source.num_elements == 0:
        return None
    found = [source.row_ids(0, epoch=epoch) for epoch in (0, 1)]
    if any(ids is None for ids in found):
        return repr(source) if isinstance(source, Dataset) else None
    return digest(np.asarray(ids, "<i8").tobytes() for ids in found)
