"""Facts that all workers must agree on before they compute together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from replicax.errors import CollectiveMismatchError, ReplicaxError, Table, call_site, describe

from ._gather import gather

_DOING, _SITE = "call", "at"


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
    site = {_SITE: str(call_site() or "not known")}
    records = gather("workers", {**compared, **(untold or {}), **site}, timeout=timeout)
    names = dict.fromkeys(name for record in records for name in record)
    ignored, first = {*(untold or {}), _SITE}, records[0]
    differing = [
        name
        for name in names
        if name not in ignored and any(record.get(name) != first.get(name) for record in records)
    ]
    if _DOING in differing:
        raise _another_call(records)
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
