"""Saving and restoring by all workers of a job: one result, which all have or none has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jax
import numpy as np

from replicax import errors
from replicax.cluster import agree, is_alone

if TYPE_CHECKING:
    from replicax.checkpoint._storage import Arrays

_MOST_CHARACTERS = 5000

_Found = TypeVar("_Found")


def begin(doing: str) -> None:
    """Make sure that all workers are about to do the same. Collective.

    Raises:
        CollectiveMismatchError: They are not; the error has a row a worker.
    """
    if not is_alone():
        agree(doing, {})


def meet_to_save(manifest: dict[str, Any]) -> None:
    """Make sure that all workers save the same leaves. Collective.

    Raises:
        CollectiveMismatchError: They do not.
        CollectiveTimeoutError: Some worker did not come.
    """
    if is_alone():
        return
    leaves = manifest["leaves"]
    agree(
        "Checkpoint.save",
        {"leaves": len(leaves), "digest of their names and shapes": _digest(manifest, {})},
        why="Worker 0 writes what all workers hold together.",
        fix="Give `Checkpoint` the same objects on every worker.",
    )


def by_one_worker(work: Callable[[], None], doing: str) -> None:
    """Have worker 0 do something, and all workers know how it ended. Collective.

    Raises:
        ReplicaxError: What was raised on worker 0; on the others, an error of the same code.
    """
    if is_alone():
        work()
        return
    error = _caught(work)[1] if jax.process_index() == 0 else None
    _raise_first(error, doing)


def from_one_worker(look: Callable[[], _Found], doing: str) -> _Found:
    """What worker 0 finds, in terms of JSON; the others do not look. Collective.

    Raises:
        ReplicaxError: What was raised on worker 0; on the others, an error of the same code.
    """
    if is_alone():
        return look()
    found, error = _caught(look) if jax.process_index() == 0 else (None, None)
    return cast("_Found", _raise_first(error, doing, found)[0])


def by_each_worker(work: Callable[[], tuple[Any, Arrays]], doing: str) -> tuple[Any, Arrays]:
    """Have all workers read a checkpoint, and make sure that it is the same one. Collective.

    Raises:
        ReplicaxError: What was raised here; or, if all went well here, an error of the same code
            as another worker's.
        CollectiveMismatchError: They read different checkpoints.
    """
    if is_alone():
        return work()
    result, error = _caught(work)
    _raise_first(error, doing)
    manifest, arrays = result
    agree(
        doing,
        {"digest of the checkpoint": _digest(manifest, arrays)},
        why="The workers would go on with different numbers.",
        fix="Give all workers one file system, or the same copy of the checkpoint.",
    )
    return manifest, arrays


def _caught(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - raised once the others know
        return None, error


def _raise_first(error: Exception | None, doing: str, found: Any = None) -> list[Any]:
    """Raises what some worker has raised, on all; else returns what each has found."""
    told = None
    if error is not None:
        mapped = errors.from_exception(error)
        told = {"code": mapped.code.name, "text": str(error)[:_MOST_CHARACTERS]}
    records = agree(doing, {}, untold={"failure": told, "found": found})
    if error is not None:
        raise error
    for worker, record in enumerate(records):
        if (failure := record["failure"]) is not None:
            kind = errors.error_class(errors.Code[failure["code"]])
            raise kind(f"Worker {worker} failed while {doing}: {failure['text']}")
    return [record["found"] for record in records]


def _digest(manifest: dict[str, Any], arrays: Arrays) -> str:
    found = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode())
    for name in sorted(arrays):
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()[:16]
