"""Which policy shares a dataset out over several input pipelines, and what each pipeline reads."""

from __future__ import annotations

from dataclasses import dataclass

from replicax import errors
from replicax._log import logger
from replicax.input._policies import AutoShardPolicy
from replicax.input._rebatched import Rebatched
from replicax.input._sources import Elements
from replicax.input._split import Seats
from replicax.input._words import counted

_LOGGER = logger("input")


@dataclass(frozen=True)
class Sharing:
    """What one pipeline reads, and why.

    Attributes:
        policy: The policy in force.
        reason: Why it is.
        elements: The batches that the pipeline reads.
        seats: The pipeline's replicas among those that share one of these batches.
        is_whole: Whether the batches are those of one device, whatever the number of pipelines.
    """

    policy: AutoShardPolicy
    reason: str
    elements: Elements
    seats: Seats
    is_whole: bool


def share_out(
    source: Elements,
    policy: AutoShardPolicy,
    num_replicas: int,
    num_pipelines: int,
    pipeline_id: int,
) -> Sharing:
    """Decide what a pipeline with `num_replicas` replicas reads.

    Raises:
        InvalidArgumentError: The source cannot be shared out as the policy says, or is a shard.
    """
    alone = Seats(0, num_replicas, num_replicas)
    if num_pipelines == 1:
        return Sharing(
            AutoShardPolicy.OFF, "one input pipeline reads everything", source, alone, is_whole=True
        )
    if source.is_sharded and policy is not AutoShardPolicy.OFF:
        raise _sharded_twice(source, policy, num_pipelines)
    policy, reason = _chosen(source, policy, num_pipelines)
    if policy is AutoShardPolicy.DATA:
        total = num_replicas * num_pipelines
        seats = Seats(pipeline_id * num_replicas, num_replicas, total)
        return Sharing(policy, reason, source, seats, is_whole=True)
    size = source.batch_size
    own = source
    if policy is not AutoShardPolicy.OFF:
        by = "files" if policy is AutoShardPolicy.FILE else "hint"
        own = source.sharded(num_pipelines, pipeline_id, by=by)  # type: ignore[arg-type]
    if size is None:
        return Sharing(policy, reason, own, alone, is_whole=False)
    _check_share(size, policy, num_pipelines)
    most = -(-size // num_pipelines)
    mine = size // num_pipelines + (pipeline_id < size % num_pipelines)
    # Replicas of all pipelines hold arrays of one shape, so that they run one program.
    even = size // (num_replicas * num_pipelines)
    seats = Seats(0, num_replicas, num_replicas, -(-most // num_replicas), even)
    return Sharing(policy, reason, Rebatched(own, mine), seats, is_whole=False)


def _chosen(
    source: Elements, policy: AutoShardPolicy, num_pipelines: int
) -> tuple[AutoShardPolicy, str]:
    count = None if source.files is None else len(source.files)
    if policy is AutoShardPolicy.AUTO:
        return _automatic(count, source.batch_size, num_pipelines)
    if policy is AutoShardPolicy.FILE:
        _check_files(count, num_pipelines)
    if policy is AutoShardPolicy.HINT and not source.shards_by_hint:
        raise errors.InvalidArgumentError(
            errors.describe(
                "The policy is HINT, but the dataset holds no hint.",
                why=f"Each of {num_pipelines} input pipelines would read every row.",
                fix="Write `.shard(rx.data.HINT)` where the dataset is to be cut, or use the "
                "policy 'auto'.",
            )
        )
    return policy, f"asked for: {_MEANINGS[policy]}"


_MEANINGS = {
    AutoShardPolicy.OFF: "every pipeline reads everything",
    AutoShardPolicy.FILE: "every pipeline reads its own files",
    AutoShardPolicy.DATA: "every pipeline takes its rows of every global batch",
    AutoShardPolicy.HINT: "the dataset is cut at its hint",
}


def _automatic(
    files: int | None, batch_size: int | None, num_pipelines: int
) -> tuple[AutoShardPolicy, str]:
    by_rows = _MEANINGS[AutoShardPolicy.DATA]
    if files is None:
        return AutoShardPolicy.DATA, f"the dataset is not made of files, so {by_rows}"
    if files < num_pipelines:
        few = counted(files, "file is", "files are")
        reason = f"{few} too few for {num_pipelines} pipelines, so {by_rows}"
    elif batch_size is None:
        reason = f"the batch size is unknown, so {by_rows}"
    elif batch_size < num_pipelines:
        rows = counted(batch_size, "row")
        reason = f"batches of {rows} are too small for {num_pipelines} pipelines with files of "
        reason += f"their own, so {by_rows}"
    else:
        by_files = _MEANINGS[AutoShardPolicy.FILE]
        return AutoShardPolicy.FILE, f"{files} files for {num_pipelines} pipelines, so {by_files}"
    _LOGGER.warning("Input policy AUTO: %s; all of them read all files.", reason)
    return AutoShardPolicy.DATA, reason


def _check_files(count: int | None, num_pipelines: int) -> None:
    if count is not None and count >= num_pipelines:
        return
    if count is None:
        what = "The policy is FILE, but the dataset is not made of files that can be shared out."
        why = "Only what `rx.data.from_files` makes knows its files. After `.take` or `.skip` they "
        why += "cannot be shared out: each pipeline would take or skip as much of its own."
    else:
        what = f"The policy is FILE, but {counted(count, 'file')} cannot be shared out over "
        what += f"{num_pipelines} input pipelines."
        why = "Every pipeline needs a file of its own."
    fix = "Use the policy 'data', which shares out the rows of every global batch, or 'auto', "
    fix += "which chooses"
    fix += "." if count is None else f"; or write the data as at least {num_pipelines} files."
    raise errors.InvalidArgumentError(errors.describe(what, why=why, fix=fix))


def _check_share(size: int, policy: AutoShardPolicy, num_pipelines: int) -> None:
    if size >= num_pipelines:
        return
    raise errors.InvalidArgumentError(
        errors.describe(
            f"A global batch of {counted(size, 'row')} cannot be shared out over {num_pipelines} "
            f"input pipelines under the policy {policy.name}.",
            why="Every pipeline takes its part of a global batch from a stream of its own, and "
            "some would take none.",
            fix=f"Use batches of at least {num_pipelines} rows, or the policy 'data'.",
        )
    )


def _sharded_twice(
    source: Elements, policy: AutoShardPolicy, num_pipelines: int
) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(
        errors.describe(
            f"The dataset is a shard already, and the policy {policy.name} would shard it again: "
            f"{source!r:.200}",
            why=f"Each of {num_pipelines} input pipelines would read a part of a part, and rows "
            "would be lost.",
            fix="Leave the sharding out, or use the policy 'off', which reads it as it is.",
        )
    )
