"""Which outputs of a replica function are errors, by what the pass found of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replicax import errors

from ._states import Dirty, Filled, Known, Mark, Parts, State, collapsed

_LISTED = 20


@dataclass(frozen=True)
class Output:
    """One output of a replica function.

    Attributes:
        label: How messages call it, such as "result['loss']" or "variable `w`".
        state: What the pass found.
        is_per_row: Whether its padding is cut off, because it has one entry a row.
    """

    label: str
    state: State
    is_per_row: bool


def check_rows(label: str, outputs: Sequence[Output], *, mask_was_used: bool) -> None:
    """Refuse outputs that padding got into.

    Args:
        label: How messages call the batch.
        outputs: The results and the written variables.
        mask_was_used: Whether the replica function asked for the mask. If not, outputs of which
            nothing is known are refused, too: only what is proved free of padding passes.

    Raises:
        UnusedMaskError: Naming the outputs, and where padding was mixed in.
    """
    rows = []
    for output in outputs:
        found = _problem(output, mask_was_used=mask_was_used)
        if found is not None:
            what, site = found
            rows.append((output.label, what, site if site is not None else "?"))
    if not rows:
        return
    counted = "its padding would count." if mask_was_used else "its mask was never used."
    raise errors.UnusedMaskError(
        errors.describe(
            f"{label} is a padded remainder, but {counted}",
            table=errors.Table(("padding is in", "because of", "at"), rows[:_LISTED]),
            why="The last global batch has fewer rows than the others. It is padded so that all "
            "replicas hold one shape, and the padding must not count in means and sums.",
            fix="Use `ctx.global_mean(per_row_values)` and `ctx.global_sum(...)`, which mask it "
            "out, also for metrics and for the statistics of a batch normalisation; or mask it "
            "yourself: `jnp.sum(x, where=ctx.example_mask)`, `jnp.where(ctx.example_mask, x, 0)`; "
            "or let the dataset drop the remainder: `rx.InputOptions(remainder='drop')`.",
        )
    )


def _problem(output: Output, *, mask_was_used: bool) -> tuple[str, errors.CallSite | None] | None:
    """What is wrong with an output, and where that came about."""
    for state in _leaves(output.state):
        if isinstance(state, Dirty):
            return state.what, state.call_site
    state = collapsed(output.state)
    if output.is_per_row:
        return None
    if isinstance(state, Known):
        marks = [mark for _, mark in state.axes if not isinstance(mark, Filled)]
        if Mark.ROWS in marks:
            return "rows, of which some are padding", None
        if not marks:
            return None
    return None if mask_was_used else ("rows that may be combined in it", None)


def _leaves(state: State) -> list[State]:
    if not isinstance(state, Parts):
        return [state]
    return [leaf for _, part in state.parts for leaf in _leaves(part)]
