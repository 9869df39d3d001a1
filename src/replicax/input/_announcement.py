"""What a distributed dataset says of itself in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax import _log
from replicax.input._plan import InputPlan
from replicax.input._words import counted

if TYPE_CHECKING:
    from replicax.input._distributed import DistributedDataset


def announce(dataset: DistributedDataset) -> None:
    """Says how the rows are shared out: once in a job, where somebody listens."""
    mesh, plan = dataset._mesh, dataset.plan
    by_chief = 0 in mesh.local_replicas
    if not _log.is_told(by_chief=by_chief):
        return
    if plan is None:
        title = "Distributed dataset: batches of a user's function, one a replica and step"
        facts: dict[str, str | None] = {"remainder": dataset._options.remainder}
    else:
        title, facts = _title(plan), _facts(plan, dataset)
    _log.tell(title, {**facts, "replicas": str(mesh.num_replicas)}, by_chief=by_chief)


def _title(plan: InputPlan) -> str:
    if plan.global_batch_size is None:
        return "Distributed dataset: global batches of unknown size"
    share = counted(plan.per_replica_batch_size, "row")
    return f"Distributed dataset: global batch of {plan.global_batch_size}, {share} a replica"


def _facts(plan: InputPlan, dataset: DistributedDataset) -> dict[str, str | None]:
    # Where steps may be left out, counting them means to go through a whole epoch.
    steps = "not counted" if plan._may_drop_steps else counted(dataset.num_batches, "step")
    pipelines = counted(plan.num_pipelines, "pipeline")
    return {
        "plan": f"{plan.policy.name}, {pipelines}: {plan.reason}",
        "remainder": plan.remainder,
        "epoch": "without end" if dataset._feed.is_infinite else steps,
    }
