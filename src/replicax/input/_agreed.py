"""Steps that all workers take together, although each reads rows of its own.

Workers that read streams of their own (files, datasets of a user's function) may come to the end at
different steps, or hold batches of different lengths. They tell each other before each step what
they have, so that all run the same program equally often.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from replicax import errors
from replicax.cluster import agree
from replicax.input._options import Remainder
from replicax.input._plan import InputPlan
from replicax.input._rows_of_others import rows_of_others
from replicax.input._split import HostBatch


def agree_on_plan(plan: InputPlan) -> list[int | None]:
    """Make sure that all workers share out the same dataset in the same way. Collective.

    Returns:
        The number of steps of each worker.

    Raises:
        CollectiveMismatchError: They do not; the error has a row a worker.
    """
    records = agree(
        "strategy.distribute_dataset",
        {**plan.common_facts(), "first batch": plan.first_batch()},
        untold={"steps": plan.num_steps},
        why="Each worker takes its part of one dataset, which all of them see.",
        fix="Pass the same dataset, with the same seed and options, on every worker. If every "
        "worker has a dataset of its own, use the policy 'off', or "
        "`strategy.distribute_datasets_from_function`.",
    )
    return [record["steps"] for record in records]


class AgreedFeed:
    """What a worker reads, and the steps that it takes with the others.

    Args:
        feed: What this worker reads.
        remainder: The rule for steps in which the workers have different numbers of rows.
        counts: The number of steps of each worker, None where unknown.
    """

    def __init__(self, feed: Any, remainder: Remainder, counts: Sequence[int | None]) -> None:
        self._feed, self._remainder = feed, remainder
        known = [count for count in counts if count is not None]
        self.num_steps = None
        if len(known) == len(counts):
            self.num_steps = min(known) if remainder == "drop" else max(known)
        self.is_infinite: bool = feed.is_infinite
        self.is_once: bool = feed.is_once
        self._last: HostBatch | None = None

    def read(self, epoch: int, start: int) -> Iterator[tuple[int, HostBatch]]:
        """This worker's rows of each step from `start` on, and the number of the step after."""
        found: Iterator[tuple[int, HostBatch]] = self._feed.read(epoch, start)
        return found

    def source_facts(self) -> dict[str, Any]:
        """What a position depends on."""
        facts: dict[str, Any] = self._feed.source_facts()
        return facts

    def agreed(self, own: HostBatch | None) -> HostBatch | None:
        """This worker's part of the step that all take next; None if all have ended. Collective.

        Args:
            own: What this worker has read, or None at its end.

        Raises:
            StructureMismatchError: The workers' batches are different trees.
            InvalidArgumentError: They differ in rows, and the rule is `"error"`.
        """
        records = agree(
            "the next batch of a distributed dataset",
            {"remainder": self._remainder},
            untold={"batch": _facts(own), "needs a row": own is None and self._last is None},
        )
        batches = [record["batch"] for record in records]
        there = [batch for batch in batches if batch is not None]
        if not there or (self._remainder == "drop" and len(there) < len(batches)):
            return None
        _check_alike(batches)
        if self._remainder == "error":
            _check_even(batches)
        if any(record["needs a row"] for record in records):
            others = rows_of_others(own)
            self._last = self._last or others
        self._last = own or self._last
        if self._last is None:
            raise errors.InternalError("No worker sent a row.")
        own = own or _without_rows(self._last)
        if self._remainder == "drop":
            return _cut(own, min(batch["share"] for batch in there))
        share = max(batch["share"] for batch in there)
        is_even = len(there) == len(batches) and not any(batch["padded"] for batch in there)
        is_even = is_even and all(batch["share"] == share for batch in there)
        return own if is_even else _widened(own, share)


def _facts(batch: HostBatch | None) -> dict[str, Any] | None:
    if batch is None:
        return None
    return {
        "share": batch.share,
        "padded": batch.rows is not None,
        "rows": int(batch.counts.sum()),
        "structure": str(batch.structure),
        "leaves": [f"{x.dtype}[{', '.join(map(str, x.shape[2:]))}]" for x in batch.stacked],
    }


def _without_rows(like: HostBatch) -> HostBatch:
    """A batch of which every row is padding."""
    return dataclasses.replace(like, rows=np.zeros(len(like.counts), np.int32))


def _widened(batch: HostBatch, share: int) -> HostBatch:
    """The batch with padding up to `share` rows, which repeats a row that is there."""
    stacked = []
    for array in batch.stacked:
        wide = np.empty((array.shape[0], share, *array.shape[2:]), array.dtype)
        wide[:] = array[:1, :1]
        kept = min(share, array.shape[1])
        wide[:, :kept] = array[:, :kept]
        stacked.append(wide)
    return HostBatch(batch.structure, stacked, batch.counts)


def _cut(batch: HostBatch, share: int) -> HostBatch:
    return HostBatch(batch.structure, [array[:, :share] for array in batch.stacked], None)


def _check_alike(batches: Sequence[dict[str, Any] | None]) -> None:
    there = [(i, batch) for i, batch in enumerate(batches) if batch is not None]
    kinds = [(batch["structure"], batch["leaves"]) for _, batch in there]
    if all(kind == kinds[0] for kind in kinds):
        return
    raise errors.StructureMismatchError(
        errors.describe(
            "The workers' batches are different trees.",
            table=errors.Table(
                ("worker", "structure", "rows of"),
                [(i, batch["structure"], ", ".join(batch["leaves"])) for i, batch in there],
            ),
            why="A step is one program for all workers.",
            fix="Yield the same keys, lengths, shapes and dtypes on every worker.",
        )
    )


def _check_even(batches: Sequence[dict[str, Any] | None]) -> None:
    rows = [0 if batch is None else batch["rows"] for batch in batches]
    if len(set(rows)) == 1 and not any(batch and batch["padded"] for batch in batches):
        return
    raise errors.InvalidArgumentError(
        errors.describe(
            "The workers have different numbers of rows in one step.",
            table=errors.Table(("worker", "rows"), list(enumerate(rows))),
            why="The dataset was distributed with `remainder='error'`.",
            fix="Give every worker equally many full batches, or use `remainder='mask'` (keeps "
            "every row) or 'drop'.",
        )
    )
