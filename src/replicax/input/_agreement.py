"""Whether the input pipelines of all workers follow one plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replicax import errors

_OWN = "pipeline_id"


def check_plans_agree(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Check that the plans of all workers belong together, before any of them reads a row.

    It compares; how the summaries get from worker to worker is the caller's.

    Args:
        summaries: `plan.summary()` of each worker, in the order of the workers.

    Raises:
        InvalidArgumentError: They differ, with a row a worker; or their pipelines are not each
            of all pipelines once.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> plans = [
        ...     rx.input.plan_input(np.arange(9), 1, rx.InputOptions(4), 2, i) for i in range(2)
        ... ]
        >>> rx.input.check_plans_agree([plan.summary() for plan in plans])
    """
    names = list(dict.fromkeys(name for one in summaries for name in one if name != _OWN))
    differing = [
        name for name in names if any(one.get(name) != summaries[0].get(name) for one in summaries)
    ]
    if differing:
        raise errors.InvalidArgumentError(
            errors.describe(
                "The workers do not read one dataset in one way.",
                table=_table(summaries, differing),
                why="A step would mix rows of different global batches, and some rows would be "
                "read twice or never.",
                fix="Make the dataset with the same data, seed and batch size, and pass the same "
                "`rx.InputOptions`, on every worker.",
            )
        )
    ids = [one[_OWN] for one in summaries]
    if sorted(ids) != list(range(len(ids))) or any(
        one["num_pipelines"] != len(ids) for one in summaries
    ):
        raise errors.InvalidArgumentError(
            errors.describe(
                "The workers' input pipelines are not each of all pipelines once.",
                table=_table(summaries, [_OWN, "num_pipelines"]),
                why="The rows of a pipeline that is missing would be read by nobody.",
                fix=f"Number the pipelines of {len(ids)} workers from 0 to {len(ids) - 1}.",
            )
        )


def _table(summaries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> errors.Table:
    return errors.Table(
        ("worker", *names),
        [(worker, *(one.get(name) for name in names)) for worker, one in enumerate(summaries)],
    )
