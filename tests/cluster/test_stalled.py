"""Which worker stands still while others wait for it."""

from __future__ import annotations

import pytest

from replicax.cluster._member import Member, find_stalled

NOW, LIMIT = 100.0, 5.0


def member(waits, *, is_waiting=False, still=10.0, left=False):
    return Member(
        connection=object(), waits=waits, is_waiting=is_waiting, changed=NOW - still, left=left
    )


@pytest.mark.parametrize(
    ("members", "stalled"),
    [
        ([member(3, is_waiting=True), member(3)], 1),
        ([member(5), member(3)], 1),  # worker 0 waits where nobody is told
        ([member(3), member(3)], None),  # both compute
        ([member(5, still=1.0), member(3)], None),  # worker 0 goes on
        ([member(5), member(3, still=1.0)], None),
        ([member(5), member(3, left=True)], None),
        ([member(3, is_waiting=True), member(3, is_waiting=True)], None),
        ([member(4), member(5), member(3)], 2),
        ([member(4), member(0)], None),  # it has not begun
    ],
    ids=["waits", "ahead", "equal", "busy", "short", "left", "all wait", "three", "new"],
)
def test_who_is_behind_and_not_waiting_stands_still(members, stalled):
    assert find_stalled(members, LIMIT, NOW) == stalled
