"""The check of rows: every replica holds some, no row twice, none left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from replicax.cluster import gather
from replicax.errors import FailedPreconditionError, Table, UnimplementedError
from replicax.input import InputPlan

from ._batches import Batches, Rows
from ._facts import Coverage
from ._report import Finding, Status
from ._state import Array
from ._work import check_replicas_work

_CHECK = "rows"
_MOST_STEPS = 2000
_MOST_SHOWN = 8


def check_rows(batches: Batches, rows: Sequence[Rows], replicas: int) -> Iterator[Finding]:
    """Every replica holds rows; their sets are disjoint, and together they are all rows.

    Args:
        batches: What was taken.
        rows: The rows of the batches.
        replicas: Number of replicas.
    """
    if not rows:
        yield Finding(
            _CHECK,
            Status.FAILED,
            "The dataset has no batches.",
            why="Its epoch has no steps.",
            fix="Look at its length; at `remainder='drop'` with fewer rows than replicas; at an "
            "iterator that has come to its end.",
        )
        return
    counted = _work(batches, rows, replicas)
    yield counted
    planned = _planned(batches.plan, batches.epoch)
    if planned is not None:
        yield planned
    elif counted.status is Status.PASSED:
        yield _contents(rows, replicas)


def coverage(batches: Batches, rows: Sequence[Rows]) -> tuple[Coverage, ...]:
    """The rows of the batches that were taken."""
    found = []
    for step, each in enumerate(rows):
        if each.counts is None:
            continue
        first: tuple[int | None, ...] = ()
        ids = _ids(batches.plan, step, batches.epoch)
        if ids is not None and len(ids) == len(each.counts):
            first = tuple(int(x[0]) if len(x) else None for x in ids)
        found.append(Coverage(step, each.counts, first))
    return tuple(found)


def _work(batches: Batches, rows: Sequence[Rows], replicas: int) -> Finding:
    """Whether every replica holds rows."""
    if batches.dataset is not None and batches.plan is not None:
        try:
            work = check_replicas_work(batches.dataset, epoch=batches.epoch)
        except FailedPreconditionError as error:
            return _from_error(error)
        except UnimplementedError:
            pass
        else:
            table = Table(
                ("replica", "device", "steps", "rows"),
                [
                    (x.replica, x.device, f"{x.steps} of {work.steps}", x.rows)
                    for x in work.replicas
                ],
            )
            what = f"All {replicas} replicas hold rows in an epoch of {work.steps} steps."
            return Finding(_CHECK, Status.PASSED, what, table)
    counts = [each.counts for each in rows if each.counts is not None]
    if not counts:
        return Finding(
            _CHECK,
            Status.WARNING,
            "No part of a batch has rows of its own on each replica.",
            why="The batches are numbers or arrays that all replicas see whole, so they may all do "
            "the same work.",
            fix="Distribute the dataset: `strategy.distribute_dataset(dataset)`.",
        )
    totals = [sum(column) for column in zip(*counts, strict=True)]
    table = Table(("replica", f"rows of {len(counts)} steps"), list(enumerate(totals)))
    idle = [i for i, total in enumerate(totals) if not total]
    if idle:
        names = ", ".join(map(str, idle))
        return Finding(
            _CHECK,
            Status.FAILED,
            f"Replica(s) {names} hold no rows.",
            table,
            why="All the work is done by the others.",
            fix="Choose a larger global batch, fewer replicas, or share the rows out evenly: "
            "`strategy.distribute_dataset` does.",
        )
    return Finding(_CHECK, Status.PASSED, f"All {replicas} replicas hold rows.", table)


def _from_error(error: FailedPreconditionError) -> Finding:
    """The finding of `check_replicas_work`, whose message is in the form of ours."""
    what, _, rest = str(error).partition("\nWhy: ")
    why, _, fix = rest.partition("\nWhat to do: ")
    return Finding(_CHECK, Status.FAILED, what, None, why or None, fix or None)


# -- by the plan -----------------------------------------------------------------------------------


def _ids(plan: InputPlan | None, step: int, epoch: int) -> Sequence[Array] | None:
    if plan is None or (plan.num_steps is not None and step >= plan.num_steps):
        return None
    return plan.rows(step, epoch)


@dataclasses.dataclass(frozen=True)
class _Told:
    """What one worker knows of the rows of an epoch."""

    given: list[int]
    expected: list[int]
    steps: int


def _planned(plan: InputPlan | None, epoch: int) -> Finding | None:
    """Whether the sets of rows are disjoint and complete, by the plan; None where it has none."""
    own = None if plan is None else _told(plan, epoch)
    told = gather("rx.verify: rows", None if own is None else dataclasses.asdict(own))
    if plan is None or any(one is None for one in told):
        return None
    steps = told[0]["steps"]
    given = np.concatenate([np.asarray(one["given"], np.int64) for one in told])
    expected = np.asarray(told[0]["expected"], np.int64)
    ids, counts = np.unique(given, return_counts=True)
    usual_ids, usual = np.unique(expected, return_counts=True)
    missing = np.setdiff1d(usual_ids, ids)
    allowed = dict(zip(usual_ids.tolist(), usual.tolist(), strict=True))
    twice = [i for i, n in zip(ids.tolist(), counts.tolist(), strict=True) if n > allowed.get(i, 1)]
    span = f"{steps} step{'s' if steps != 1 else ''} of epoch {epoch}"
    if twice:
        return Finding(
            _CHECK,
            Status.FAILED,
            f"{len(twice)} rows are read more than once in {span}: {_some(twice)}.",
            why=f"The input policy is {plan.policy.name} ({plan.reason}); the sets of rows of the "
            "replicas are not disjoint.",
            fix="Let one place share the rows out: `strategy.distribute_dataset` with the policy "
            "'auto' or 'data'.",
        )
    cut = _cut_off(plan, len(given), steps)
    if len(missing):
        is_choice = plan.remainder == "drop"
        return Finding(
            _CHECK,
            Status.WARNING if is_choice else Status.FAILED,
            f"The replicas read {len(given)} of {len(expected)} rows in {span}; left out are "
            f"{_some(missing.tolist())}.",
            why="`remainder='drop'` leaves out what cannot be shared evenly."
            if is_choice
            else f"The plan, of policy {plan.policy.name}, gives them to nobody.",
            fix="Use `rx.InputOptions(remainder='mask')`, which keeps every row.",
        )
    if cut is not None:
        return Finding(
            _CHECK,
            Status.WARNING,
            f"The replicas read {len(given)} of {cut} rows of the source in {span}.",
            why="The dataset leaves the others out in each epoch: by `take` or `skip`."
            if cut - len(given) >= (plan.global_batch_size or 1)
            else "The dataset leaves out its last batch, which is not full: by "
            "`batch(..., drop_remainder=True)`, or by `take` or `skip`.",
            fix="Leave that out, if every row is meant to be read: uneven batches cost nothing "
            "and count right.",
        )
    return Finding(
        _CHECK,
        Status.PASSED,
        f"Disjoint and complete: the replicas read {len(given)} rows in {span}, each as often as "
        "one device.",
    )


def _cut_off(plan: InputPlan, given: int, steps: int) -> int | None:
    """Rows of the source, where an epoch is cut to fewer; None where it is not."""
    total = plan._source.source_length
    is_whole_epoch = plan.num_steps is not None and steps == plan.num_steps
    return total if is_whole_epoch and total is not None and given < total else None


def _told(plan: InputPlan, epoch: int) -> _Told | None:
    """The rows of this pipeline, and those that one device would read."""
    count = plan.num_steps
    if count is None:
        count = 8 if plan.is_infinite else None
    if count is None or (count and plan.rows(0, epoch) is None):
        return None
    steps = min(count, _MOST_STEPS)
    if steps < count and not plan._sharing.is_whole:
        return None  # Which rows one device reads by then is not what this pipeline reads.
    given: list[int] = []
    for step in range(steps):
        parts = [np.asarray(x) for x in plan.rows(step, epoch) or ()]
        rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        given += rows.tolist()
    source = plan._source
    total = source.num_elements
    # All elements where the whole epoch is looked at: also those that `drop` leaves out.
    elements = total if total is not None and steps == count and not plan.is_infinite else steps
    expected: list[int] = []
    for element in range(elements):
        ids = source.row_ids(element, epoch=epoch)
        if ids is None:
            return None
        expected += np.asarray(ids).tolist()
    return _Told(given, expected, steps)


def _some(rows: Sequence[int]) -> str:
    shown = ", ".join(str(int(x)) for x in rows[:_MOST_SHOWN])
    return shown + (", ..." if len(rows) > _MOST_SHOWN else "")


# -- by what the batches hold ----------------------------------------------------------------------


def _contents(rows: Sequence[Rows], replicas: int) -> Finding:
    """Whether two replicas hold the same rows, where no plan numbers them."""
    held = [_held(rows, replica) for replica in range(replicas)]
    distinct = [set(x) for x in held]
    pairs = []
    for i in range(replicas):
        for j in range(i + 1, replicas):
            same = len(distinct[i] & distinct[j])
            if same and same == len(distinct[i]) == len(distinct[j]):
                pairs.append((i, j, same))
    if pairs and all(len(x) == 1 for x in distinct if x):
        return Finding(
            _CHECK,
            Status.NOT_CHECKED,
            "Whether the replicas' rows are disjoint is not known.",
            why="The dataset does not number its rows, and the rows of a replica are all equal.",
        )
    if pairs:
        return Finding(
            _CHECK,
            Status.FAILED,
            "Replicas hold the same rows.",
            Table(("replica", "and replica", "different rows in common"), pairs[:_MOST_SHOWN]),
            why="Every replica reads the whole dataset, so the others add nothing.",
            fix="Use `strategy.distribute_dataset`; or, in a dataset function, take the part that "
            "`context.input_pipeline_id` of `context.num_input_pipelines` says.",
        )
    return Finding(
        _CHECK,
        Status.PASSED,
        f"No two replicas hold the same rows in {len(rows)} steps.",
        why="The dataset does not number its rows: whether every row of it is read is not known.",
    )


def _held(rows: Sequence[Rows], replica: int) -> list[bytes]:
    """The bytes of each row that a replica holds, over all leaves."""
    found: list[bytes] = []
    for batch in rows:
        leaves: list[list[Any]] = batch.of_replicas()
        parts = [leaf[replica] for leaf in leaves if leaf[replica].ndim]
        if parts and len({len(x) for x in parts}) == 1:
            found += [b"".join(x[i].tobytes() for x in parts) for i in range(len(parts[0]))]
    return found
