"""The proof's verdict on what a replica function writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicax import errors
from replicax.step._proof import Source
from replicax.values import Variable

_NAMED = 5
_LISTED = 20


def check_writes(
    written: Mapping[Variable, errors.CallSite | None], causes: Sequence[Source | None]
) -> None:
    """Refuse varying writes to mirrored variables.

    Args:
        written: The variables and the lines where they are written.
        causes: For each of them why its new value varies; None if it is proved mirrored. That of
            a sync-on-read variable may vary.

    Raises:
        VaryingWriteError: Naming the variables, the lines, and what the values depend on.
    """
    bad = [
        (variable, site, cause)
        for (variable, site), cause in zip(written.items(), causes, strict=True)
        if cause is not None and not variable.is_on_read
    ]
    if not bad:
        return
    names = ", ".join(f"`{variable.name}`" for variable, _, _ in bad[:_NAMED])
    more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    rows = [
        (v.name, site if site is not None else "?", describe_source(cause))
        for v, site, cause in bad[:_LISTED]
    ]
    raise errors.VaryingWriteError(
        errors.describe(
            f"Mirrored variable {names}{more} is written with a value that may differ between "
            "replicas.",
            table=errors.Table(("variable", "written at", "varies because it depends on"), rows),
            why="Each replica would keep a weight of its own. Most often a gradient was not "
            "all-reduced.",
            fix="Combine the value first: `ctx.all_reduce('mean', value)` for gradients, or give "
            "the variable an aggregation (`rx.Variable(..., aggregation='mean')`).",
        )
    )


def describe_source(source: Source) -> str:
    """Say why a value varies, with the line if it is known."""
    at = f" at {source.call_site}" if source.call_site is not None else ""
    return source.description + at
