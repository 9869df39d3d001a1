"""Which pipeline and replica reads which rows at which step, known before the first one."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from replicax import errors
from replicax.input._as_elements import as_elements
from replicax.input._facts import digest, facts_of
from replicax.input._options import InputOptions, Remainder, checked_options
from replicax.input._policies import AutoShardPolicy
from replicax.input._sharing import Sharing, share_out
from replicax.input._sources import Elements, Plain, RowIds, digest_of_first
from replicax.input._split import HostBatch, cut
from replicax.input._words import counted, listed

_RULES = {
    "mask": "every row is kept, padding is masked",
    "drop": "rows that cannot be shared evenly are left out",
    "error": "a batch that cannot be shared evenly is an error",
}


@dataclass(frozen=True)
class InputPlan:
    """Which rows each replica of an input pipeline reads, step by step.

    `strategy.distribute_dataset` makes it, before anything is read; it is the `plan` of the
    distributed dataset, and `print(plan)` shows it as a table. What the policies mean for several
    pipelines is told by `rx.AutoShardPolicy`.

    Attributes:
        global_batch_size: Rows of a full global batch, over all pipelines; None if unknown.
        num_replicas: Replicas that the pipeline feeds.
        num_pipelines: Input pipelines, one a process.
        pipeline_id: Number of this one.
        policy: How the pipelines share the dataset out: never AUTO.
        reason: Why this policy.
        remainder: The rule for batches that cannot be shared evenly.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> options = rx.InputOptions(global_batch_size=4)
        >>> plan = strategy.distribute_dataset(np.arange(7), options).plan
        >>> plan.num_steps, [ids.tolist() for ids in plan.rows(1)]
        (2, [[4, 5], [6]])
    """

    global_batch_size: int | None
    num_replicas: int
    num_pipelines: int
    pipeline_id: int
    policy: AutoShardPolicy
    reason: str
    remainder: Remainder
    _source: Elements = field(repr=False, compare=False)
    _sharing: Sharing = field(repr=False, compare=False)
    _kept_elements: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    # -- sizes --------------------------------------------------------------

    @property
    def per_replica_batch_size(self) -> int | None:
        """Rows of one replica's share of a full batch, with padding; None if unknown."""
        if self.global_batch_size is None:
            return None
        most = -(-self.global_batch_size // self.num_pipelines)
        seats = self._sharing.seats
        if self._sharing.is_whole:
            return seats.shares(self.global_batch_size, self.remainder)[0]
        return seats.shares(most, self.remainder)[0]

    @functools.cached_property
    def num_steps(self) -> int | None:
        """Steps of one epoch of this pipeline, or None if unknown or without end."""
        elements = self._sharing.elements
        if not self._may_drop_steps:
            return elements.num_elements
        kept = self._kept(0)
        if kept is not None:
            return len(kept)
        # Elements without rows are no steps, but who yields those?
        return None if self.remainder == "drop" else elements.num_elements

    @property
    def _may_drop_steps(self) -> bool:
        """Whether an element may be left out."""
        return self.remainder == "drop" or self._sharing.elements.batch_size is None

    def _kept(self, epoch: int) -> list[int] | None:
        """The elements that become steps, or None if unknown."""
        count = self._sharing.elements.num_elements
        if count is None:
            return None
        if epoch not in self._kept_elements:
            kept = []
            for element in range(count):
                share = self._share_of(element, epoch)
                if share is None:
                    return None
                if share:
                    kept.append(element)
            self._kept_elements.clear()  # Of one epoch only: a user walks through it.
            self._kept_elements[epoch] = kept
        return self._kept_elements[epoch]

    def _share_of(self, element: int, epoch: int) -> int | None:
        """Rows of one replica's arrays, with padding, of an element; None if unknown."""
        elements = self._sharing.elements
        ids = self._row_ids(element, epoch)
        rows = None if ids is None else len(ids)
        if rows is None and isinstance(elements, Plain):
            rows = elements.num_rows(element)
        return None if rows is None else self._sharing.seats.shares(rows, self.remainder)[0]

    def _row_ids(self, element: int, epoch: int) -> RowIds | None:
        """The ids of an element's rows; the id of a batch, which a source may give, is none."""
        elements = self._sharing.elements
        if elements.batch_size is None:
            return None
        return elements.row_ids(element, epoch=epoch)

    # -- rows ----------------------------------------------------------------

    def rows(self, step: int, epoch: int = 0) -> tuple[RowIds, ...] | None:
        """The rows that each of the pipeline's replicas gets, by their places in the source.

        Args:
            step: Number of the step in the epoch, from 0.
            epoch: Number of the epoch, from 0.

        Returns:
            i64[rows] for each replica, or None where the source does not number its rows.

        Raises:
            OutOfRangeError: The epoch has no such step.
        """
        kept = self._kept(epoch) if self._may_drop_steps else None
        count = self._sharing.elements.num_elements if kept is None else len(kept)
        if step < 0 or (count is not None and step >= count):
            raise errors.OutOfRangeError(
                errors.describe(
                    f"The plan has no step {step}.",
                    why=f"An epoch has {counted(count, 'step')}, numbered from 0."
                    if count is not None
                    else "Steps are numbered from 0.",
                )
            )
        ids = self._row_ids(step if kept is None else kept[step], epoch)
        if ids is None:
            return None
        _, pieces = self._sharing.seats.shares(len(ids), self.remainder)
        return tuple(ids[first:last] for first, last in pieces)

    # -- agreement -------------------------------------------------------------

    @property
    def is_known_to_all(self) -> bool:
        """Whether pipelines that agree on the plan know each other's steps and rows."""
        return self._sharing.is_whole and self._source.num_elements is not None

    def common_facts(self) -> dict[str, Any]:
        """What all pipelines must agree on, in terms of JSON."""
        facts: dict[str, Any] = {
            "global batch": self.global_batch_size,
            "replica's share": self.per_replica_batch_size,
            "replicas": self.num_replicas,
            "pipelines": self.num_pipelines,
            "policy": self.policy.name,
            "remainder": self.remainder,
            "is without end": self.is_infinite,
        }
        if self.policy is not AutoShardPolicy.OFF or self.num_pipelines == 1:
            facts |= self._facts  # Under OFF, each pipeline may read a dataset of its own.
        return facts

    def first_batch(self) -> str | None:
        """A digest of the first batch where all pipelines read the same; None if not known."""
        return digest_of_first(self._source) if self._sharing.is_whole else None

    def digest(self) -> str:
        """A number of what all pipelines must agree on, as 16 hexadecimal digits."""
        return digest([json.dumps(self.common_facts()).encode()])

    def source_facts(self) -> dict[str, Any]:
        """What a position in the dataset depends on; the number of replicas is no part of it."""
        facts = {"batch_size": self.global_batch_size, **self._facts}
        if not self._sharing.is_whole:  # Positions count the pipeline's own steps.
            facts["stream"] = [self.policy.name, self.num_pipelines]
        return facts

    @functools.cached_property
    def _facts(self) -> dict[str, Any]:
        return facts_of(self._source)

    # -- reading -----------------------------------------------------------------

    @property
    def is_once(self) -> bool:
        """Whether the source can be read only once."""
        return bool(getattr(self._source, "is_once", False))

    @property
    def is_infinite(self) -> bool:
        """Whether an epoch is known to have no end."""
        return bool(getattr(self._source, "is_infinite", False))

    def read(self, epoch: int, start: int) -> Iterator[tuple[int, HostBatch]]:
        """The pipeline's rows of each step from `start` on, and the number of the step after."""
        sharing = self._sharing
        for step, batch in enumerate(sharing.elements.open(epoch=epoch, start=start), start):
            mine = cut(batch, sharing.seats, self.remainder, step)
            if mine is not None:
                yield step + 1, mine

    # -- words -------------------------------------------------------------------

    def __str__(self) -> str:
        lines = [
            ("global batch", counted(self.global_batch_size, "row")),
            ("replica's share", counted(self.per_replica_batch_size, "row")),
            ("steps of an epoch", counted(self.num_steps, "step")),
            ("pipeline", f"{self.pipeline_id} of {self.num_pipelines}"),
            ("replicas", f"{self.num_replicas} of {self.num_replicas * self.num_pipelines}"),
            ("policy", f"{self.policy.name}: {self.reason}"),
            ("remainder", f"{self.remainder}: {_RULES[self.remainder]}"),
        ]
        text = "\n".join(f"{name:<18} {value}" for name, value in lines)
        first = self.rows(0) if self.num_steps != 0 else None
        if first is not None:
            table = errors.Table(
                ("replica", "rows of step 0"),
                [
                    (self.pipeline_id * self.num_replicas + i, listed(ids))
                    for i, ids in enumerate(first)
                ],
            )
            text += f"\n\n{table}"
        return text


def plan_input(
    dataset: Any,
    num_replicas: int,
    options: InputOptions | None = None,
    num_pipelines: int = 1,
    pipeline_id: int = 0,
) -> InputPlan:
    """Plan what one input pipeline of several reads. Nothing is read, and no device is needed.

    Args:
        dataset: What `strategy.distribute_dataset` takes.
        num_replicas: Replicas that each pipeline feeds.
        options: Input options.
        num_pipelines: Number of pipelines.
        pipeline_id: Number of this one.

    Raises:
        InvalidArgumentError: The dataset cannot be shared out as the options say.
        ArgumentTypeError: It is no dataset.

    Examples:
        >>> import numpy as np
        >>> options = InputOptions(global_batch_size=6)
        >>> for i in range(2):
        ...     plan = plan_input(np.arange(10), 2, options, num_pipelines=2, pipeline_id=i)
        ...     print([ids.tolist() for ids in plan.rows(0)])
        [[0, 1], [2, 3]]
        [[4, 5], []]
    """
    options = checked_options(options)
    if num_replicas < 1 or not 0 <= pipeline_id < num_pipelines:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"There is no input pipeline {pipeline_id} of {num_pipelines} with {num_replicas} "
                "replicas.",
                fix="Pass counts from 1, and the number of the pipeline from 0.",
            )
        )
    source = as_elements(dataset, options)
    policy = AutoShardPolicy.parse(options.policy)
    sharing = share_out(source, policy, num_replicas, num_pipelines, pipeline_id)
    return InputPlan(
        source.batch_size,
        num_replicas,
        num_pipelines,
        pipeline_id,
        sharing.policy,
        sharing.reason,
        options.remainder,
        source,
        sharing,
    )
