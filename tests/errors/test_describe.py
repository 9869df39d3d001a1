"""The form of messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax.errors import InvalidArgumentError, Table, describe


def test_order_of_the_parts():
    text = describe(
        "It broke.", fix="mend it.", why="it was weak.", table=Table(["who"], [["a"], ["b"]])
    )
    assert text.splitlines() == [
        "It broke.",
        "  who",
        "  a",
        "  b",
        "Why: it was weak.",
        "What to do: mend it.",
    ]


def test_parts_that_are_not_given_leave_no_line():
    assert describe("It broke.") == "It broke."
    assert describe("It broke.", fix="mend it.") == "It broke.\nWhat to do: mend it."


def test_numbers_stand_right_and_words_left():
    table = Table(["replica", "shape"], [[0, (4,)], [10, (4, 3)]])
    assert str(table) == "replica  shape\n      0  (4,)\n     10  (4, 3)"


def test_a_table_without_rows_is_its_head():
    assert str(Table(["a", "b"], [])) == "a  b"


@pytest.mark.parametrize("row", [[], [1], [1, 2, 3]])
def test_a_row_of_another_length(row):
    with pytest.raises(InvalidArgumentError, match=f"Row 1 of a table has {len(row)} cells"):
        Table(["a", "b"], [[1, 2], row])


@given(st.lists(st.lists(st.text() | st.integers(), min_size=3, max_size=3), max_size=5))
def test_every_row_is_one_line_and_columns_are_aligned(rows):
    # A bar at the end of each cell shows where the columns end.
    bars = [[str(cell).replace("|", "") + "|" for cell in row] for row in rows]
    lines = str(Table(["a|", "b|", "c|"], bars)).split("\n")
    assert len(lines) == len(rows) + 1
    assert all(line.count("|") == 3 for line in lines)
    width = max(len(" ".join(row[0].splitlines())) for row in [["a|"], *bars])
    assert all("|" in line[:width] for line in lines)
