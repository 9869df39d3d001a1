"""The form of a message: what happened, who differs, why, what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ._tree import InvalidArgumentError

_GAP = "  "


@dataclasses.dataclass(frozen=True)
class Table:
    """A plain-text table, usually with one row for each participant.

    Numbers are right aligned, all else is left aligned. A line break in a cell becomes a
    space.

    Attributes:
        columns: The head of each column.
        rows: One sequence of cells a row, as long as `columns`.

    Raises:
        InvalidArgumentError: A row has more or fewer cells than there are columns.

    Examples:
        >>> print(Table(["replica", "op"], [[0, "sum"], [1, "mean"]]))
        replica  op
              0  sum
              1  mean
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __post_init__(self) -> None:
        """Checks the lengths."""
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                message = (
                    f"Row {number} of a table has {len(row)} cells: {list(row)!r}.\n"
                    f"Why: the table has {len(self.columns)} columns: {list(self.columns)!r}."
                )
                raise InvalidArgumentError(message)

    def __str__(self) -> str:
        """The table, without a line break at its end."""
        cells = [[_cell(cell) for cell in row] for row in [self.columns, *self.rows]]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        right = [
            bool(self.rows) and all(isinstance(row[i], (int, float)) for row in self.rows)
            for i in range(len(self.columns))
        ]
        lines = []
        for row in cells:
            padded = [
                cell.rjust(width) if is_right else cell.ljust(width)
                for cell, width, is_right in zip(row, widths, right, strict=True)
            ]
            lines.append(_GAP.join(padded).rstrip())
        return "\n".join(lines)


def describe(
    what: str,
    *,
    table: Table | None = None,
    why: str | None = None,
    fix: str | None = None,
) -> str:
    """Builds the message of an error. Context: any.

    Args:
        what: What happened, with the argument echoed.
        table: Who differs, where someone does.
        why: The rule that was broken, or the cause.
        fix: What the user can do.

    Returns:
        The parts in this order, each on a line of its own, the table indented.

    Examples:
        >>> print(describe(
        ...     "The replicas disagree on an all_reduce.",
        ...     table=Table(["replica", "op"], [[0, "sum"], [1, "mean"]]),
        ...     why="all replicas must call the same collectives in the same order.",
        ...     fix="use one op on all replicas.",
        ... ))
        The replicas disagree on an all_reduce.
          replica  op
                0  sum
                1  mean
        Why: all replicas must call the same collectives in the same order.
        What to do: use one op on all replicas.
    """
    parts = [what]
    if table is not None:
        parts += [_GAP + line for line in str(table).splitlines()]
    if why is not None:
        parts.append(f"Why: {why}")
    if fix is not None:
        parts.append(f"What to do: {fix}")
    return "\n".join(parts)


def _cell(value: object) -> str:
    return " ".join(str(value).splitlines())
