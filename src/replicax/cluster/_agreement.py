"""Facts that all workers must agree on before they compute together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from replicax.errors import CollectiveMismatchError, ReplicaxError, Table, describe

from ._gather import meet, site_here
from ._order import ORDER
from ._runtime import runtime

_DOING, _SITE = "call", "at"
_PLACE, _LAST = "order before", "last run"


def agree(
    doing: str,
    facts: Mapping[str, Any],
    *,
    untold: Mapping[str, Any] | None = None,
    why: str = "All workers must do the same, in the same order.",
    fix: str = "Pass the same on every worker.",
    error: Callable[[str], ReplicaxError] = CollectiveMismatchError,
    timeout: float | None = None,
) -> list[dict[str, Any]]:
    """Meet the other workers and make sure that they do the same. Collective: yes.

    And that they have done the same before: as many programs and meetings, in the same order.

    Args:
        doing: What all are about to do, such as ``strategy.gather``.
        facts: What must be equal, in terms of JSON.
        untold: What the others get to know and need not be equal.
        why: Why it must be equal, for the message.
        fix: What to do otherwise, for the message.
        error: The class of the error.
        timeout: Seconds to wait for the others; None for `Timeouts.collective`.

    Returns:
        The facts of each worker, those of `untold` as well.

    Raises:
        CollectiveMismatchError: (or `error`) They differ; the error has a row a worker.
        CollectiveTimeoutError: Some worker did not come.

    Examples:
        >>> (record,) = agree("an example", {"rows": 3}, untold={"host": "a"})
        >>> record["rows"], record["host"]
        (3, 'a')
    """
    compared = {_DOING: doing, **facts}
    site = site_here()
    told = {_SITE: site, _PLACE: ORDER.state(), _LAST: ORDER.last()}
    record = {**compared, **(untold or {}), **told}
    records = meet("workers", record, doing, site, timeout=timeout)
    names = dict.fromkeys(name for record in records for name in record)
    ignored, first = {*(untold or {}), *told}, records[0]
    differing = [
        name
        for name in names
        if name not in ignored and any(record.get(name) != first.get(name) for record in records)
    ]
    if _DOING in differing:
        raise _another_call(records)
    if any(record.get(_PLACE) != first.get(_PLACE) for record in records):
        if (worker := runtime()) is not None:
            worker.compare_orders()  # The master knows more.
        raise _another_order(records)
    if not differing:
        return records
    rows = [
        (i, *(record.get(name) for name in differing), record[_SITE])
        for i, record in enumerate(records)
    ]
    raise error(
        describe(
            f"The workers disagree on {', '.join(differing)} of {doing}.",
            table=Table(("worker", *differing, _SITE), rows),
            why=why,
            fix=fix,
        )
    )


def _another_call(records: list[dict[str, Any]]) -> CollectiveMismatchError:
    rows = [(i, record[_DOING], record[_SITE]) for i, record in enumerate(records)]
    return CollectiveMismatchError(
        describe(
            "The workers met in different calls.",
            table=Table(("worker", _DOING, _SITE), rows),
            why="All workers must make the same calls in the same order: each of them takes all "
            "workers.",
            fix="Do not make such a call under a condition that only some workers meet, such as "
            "`if is_chief:`.",
        )
    )


def _another_order(records: list[dict[str, Any]]) -> CollectiveMismatchError:
    rows = [(i, record[_PLACE][0], *record[_LAST]) for i, record in enumerate(records)]
    return CollectiveMismatchError(
        describe(
            f"The workers met in {records[0][_DOING]}, but did not run the same before.",
            table=Table(("worker", "has run", "last", "at"), rows),
            why="All workers must run the same programs, and meet, in the same order.",
            fix="Run the same number of steps on every worker, in the same order.",
        )
    )
