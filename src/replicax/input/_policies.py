"""The choices that input options name: how input is shared out over input pipelines."""

from __future__ import annotations

import enum
from typing import Self

from replicax import errors


class _Named(enum.Enum):
    """An enum whose members may be given by name, in any case."""

    @classmethod
    def parse(cls, value: Self | str) -> Self:
        """Return the member that ``value`` is or names.

        Raises:
            InvalidArgumentError: No member has this name.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        known = ", ".join(repr(name.lower()) for name in cls.__members__)
        raise errors.InvalidArgumentError(
            errors.describe(
                f"{value!r} is no `{cls.__name__}`.",
                fix=f"Pass one of {known}, or a member of `rx.{cls.__name__}`.",
            )
        )


class AutoShardPolicy(_Named):
    """How several input pipelines share out one dataset, with tf.data's meaning.

    With one pipeline nothing is shared out, whatever the policy. A batch of the dataset is a
    global batch under every policy: a step takes its number of rows over all pipelines.

    Under DATA a step has the very rows of one device's step. Under OFF, FILE and HINT each of `n`
    pipelines takes its share, `1 / n` of the rows of a global batch, from a stream of its own. So
    a step has rows of several places of the dataset, and an epoch ends for each pipeline with its
    own stream; where streams have different lengths, the last steps have fewer rows.

    Attributes:
        OFF: Every pipeline reads everything: an epoch has every row `n` times, in `n` times as
            many steps. For datasets that are shards already, or differ by pipeline.
        AUTO: FILE where the dataset is made of enough files, else DATA.
        FILE: Every pipeline reads its own files, every n-th.
        DATA: Every pipeline reads everything and takes its rows of every global batch.
        HINT: The dataset says where it is cut: `.shard(rx.data.HINT)` stands in its chain. An
            error where it does not; tf.data then reads every row on every pipeline.

    Examples:
        >>> AutoShardPolicy.parse("data")
        <AutoShardPolicy.DATA: 2>
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class InputReplicationMode(_Named):
    """How often `strategy.distribute_datasets_from_function` calls the function.

    Attributes:
        PER_WORKER: Once a process; its batches go to the replicas in turn.
        PER_REPLICA: Once a replica, which gets the batches of its own pipeline.

    Examples:
        >>> InputReplicationMode.parse("per_replica")
        <InputReplicationMode.PER_REPLICA: 'PER_REPLICA'>
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"
