"""Messages about replicas that did not meet as they should."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NoReturn

from replicax.errors import (
    CallSite,
    CollectiveMismatchError,
    DeadlineExceededError,
    Table,
    describe,
)

from ._ledger import Entry

_SAME_ORDER = "all replicas must call the same collectives in the same order."
_NOT_KNOWN = "not known"


@dataclasses.dataclass(frozen=True)
class ReplicaReport:
    """What one replica has done so far.

    Attributes:
        name: How messages name the replica.
        state: What it does now.
        collectives: How many it has called.
        site: Line of user code of its last collective, or where it is.
    """

    name: str
    state: str
    collectives: int
    site: CallSite | None


def check_same_collective(names: Sequence[str], entries: Sequence[Entry], number: int) -> None:
    """Raises an error where replicas have met in different collectives.

    Dtypes and shapes are left to the collective itself: a gather allows uneven ones.

    Args:
        names: How messages name the replicas.
        entries: The collective of each replica.
        number: How many collectives went well before.

    Raises:
        CollectiveMismatchError: Kinds or ops differ.
    """
    first = entries[0]
    if all(entry.kind == first.kind and entry.op == first.op for entry in entries):
        return
    rows = [
        [name, entry.kind, entry.op or "-", entry.call_site or _NOT_KNOWN]
        for name, entry in zip(names, entries, strict=True)
    ]
    raise CollectiveMismatchError(
        describe(
            f"The replicas disagree on collective {number + 1} of this run.",
            table=Table(["replica", "kind", "op", "at"], rows),
            why=_SAME_ORDER,
            fix="do not call a collective in a branch that only some replicas take.",
        )
    )


def raise_unequal_numbers(reports: Sequence[ReplicaReport]) -> NoReturn:
    """Raises the error for replicas that have finished while others wait.

    Raises:
        CollectiveMismatchError: Always.
    """
    waiting = ", ".join(report.name for report in reports if report.state == "waiting")
    finished = ", ".join(report.name for report in reports if report.state == "finished")
    rows = [[r.name, r.state, r.collectives, r.site or _site_of_none(r)] for r in reports]
    raise CollectiveMismatchError(
        describe(
            f"The replicas made different numbers of collectives: {finished} finished while "
            f"{waiting} waited for a collective.",
            table=Table(["replica", "state", "collectives", "last at"], rows),
            why=_SAME_ORDER,
            fix="call the collective on every replica, also where one has no rows.",
        )
    )


def raise_deadline_exceeded(
    reports: Sequence[ReplicaReport], timeout_seconds: float, number: int
) -> NoReturn:
    """Raises the error for a replica that did not arrive in time.

    Raises:
        DeadlineExceededError: Always.
    """
    late = ", ".join(report.name for report in reports if report.state == "did not arrive")
    rows = [[r.name, r.state, r.collectives, r.site or _site_of_none(r)] for r in reports]
    raise DeadlineExceededError(
        describe(
            f"{late[:1].upper()}{late[1:]} did not arrive at collective {number + 1} of this run "
            f"within {timeout_seconds:g} s.",
            table=Table(["replica", "state", "collectives", "at"], rows),
            why="one replica runs at a time, and the others wait for it.",
            fix="look at the line where it is; raise `timeout_seconds` if it only needs longer.",
        )
    )


def _site_of_none(report: ReplicaReport) -> str:
    return _NOT_KNOWN if report.collectives else "-"
