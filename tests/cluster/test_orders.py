"""The order of what runs: packed by a worker, compared by the master. One process."""

from __future__ import annotations

import pytest

from replicax.cluster import Failure, _orders
from replicax.cluster._order import VARIANT_BITS, Order, entry_of
from replicax.cluster._orders import Orders
from replicax.errors import CollectiveMismatchError

A, B, C = (entry_of(name) for name in "abc")


class Pair:
    """Two workers, and the master's view of them."""

    def __init__(self):
        self.orders = Orders(2)
        self.workers = [Order(), Order()]
        for worker in self.workers:
            worker.is_watched = True
            for entry, name in ((A, "a"), (B, "b"), (C, "c")):
                worker.name(entry, f"`{name}`", f"train.py:{name}")

    def tell(self, rank, *entries, now=0.0):
        """One worker runs these, and tells the master."""
        self.workers[rank].ran.extend(entries)
        found = None
        for news in self.workers[rank].news():
            found = found or self.orders.heard(rank, news, now)
        return found

    def enter(self, rank, entry):
        self.workers[rank].entering = entry
        return self.tell(rank) or self.tell(rank)


@pytest.fixture
def pair():
    return Pair()


def test_workers_that_run_the_same_may_be_ahead_of_each_other(pair):
    assert pair.tell(0, *[A] * 1000, B, A) is None
    for _ in range(10):
        assert pair.tell(1, *[A] * 100) is None
    assert pair.tell(1, B) is None
    assert pair.tell(1, A, A) is None
    assert pair.tell(0, A) is None
    assert pair.workers[0].state() == pair.workers[1].state()
    assert pair.workers[0].state()[0] == 1003
    assert len(pair.orders._runs) == 1


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        ([A, B], [B, A], 0),
        ([A, A, A, B], [A, A, B, B], 2),
        ([A] * 5, [A] * 3 + [C], 3),
        ([A, B, A, B, C], [A, B, A, C], 3),
    ],
    ids=["swapped", "skipped", "another", "alternating"],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_difference_is_found(pair, first, second, place, rank):
    assert pair.tell(rank, *first) is None
    found = pair.tell(1 - rank, *second)
    assert found.place == place
    names = {A: "`a`", B: "`b`", C: "`c`"}
    mine, other = found.rows[rank], found.rows[1 - rank]
    assert mine[1:] == (names[first[place]], f"train.py:{names[first[place]][1]}")
    assert other[1] == names[second[place]]
    assert pair.workers[0].state()[1] != pair.workers[1].state()[1]


def test_it_becomes_the_error_that_all_raise(pair):
    pair.tell(0, A)
    failure = pair.tell(1, B).to_failure()
    error = Failure.from_json(failure.to_json()).to_error("This is worker 0.")
    assert isinstance(error, CollectiveMismatchError)
    assert "after 0 programs" in str(error)
    assert "1  `b`" in str(error)
    assert str(error).endswith("This is worker 0.")


def test_variants_of_one_program_are_told_apart(pair):
    assert pair.tell(0, A | 1, A | 2) is None
    found = pair.tell(1, A | 1, A | 3)
    assert (found.place, found.is_variant) == (1, True)
    assert "different plain numbers" in found.message()
    assert A >> VARIANT_BITS << VARIANT_BITS == A


def test_meetings_say_what_for(pair):
    pair.tell(0, A)
    pair.workers[1].ran.append(A)
    pair.workers[1].meet("workers", "Checkpoint.save", "train.py:9")
    assert pair.workers[1].last() == ("Checkpoint.save", "train.py:9")
    assert pair.tell(1) is None
    found = pair.tell(0, A)
    assert found.rows == ((0, "`a`", "train.py:a"), (1, "Checkpoint.save", "train.py:9"))


def test_meetings_of_one_name_meet_whatever_for(pair):
    pair.workers[0].meet("workers", "Checkpoint.save", "train.py:9")
    pair.workers[1].meet("workers", "strategy.reduce", "train.py:8")
    assert pair.tell(0) is None
    assert pair.tell(1) is None


def test_a_program_counts_once_it_is_being_started_for_long(pair):
    pair.tell(0, A)
    pair.workers[1].entering = B
    assert pair.tell(1) is None
    assert pair.workers[1].is_entering
    pair.workers[1].entering = 0  # Other arguments: it did not start after all.
    assert pair.tell(1, A) is None
    assert pair.enter(1, B) is None  # Nobody else is there.
    found = pair.tell(0, A)
    assert [row[1] for row in found.rows] == ["`a`", "`b`"]


def test_programs_that_are_being_started_are_compared(pair):
    assert pair.enter(0, A) is None
    assert pair.orders.where(0)["last"] == "`a`"
    assert pair.enter(1, A) is None
    pair.workers[1].entering = 0
    pair.tell(1)
    found = pair.enter(1, B)
    assert [row[1] for row in found.rows] == ["`a`", "`b`"]


def test_nothing_new_is_no_message(pair):
    assert len(list(pair.workers[0].news())) == 1  # names
    assert list(pair.workers[0].news()) == []


def test_who_is_far_behind_is_compared_by_a_hash(pair, monkeypatch):
    monkeypatch.setattr(_orders, "_MOST_RUNS", 4)
    entries = [A, B] * 10
    pair.tell(0, *entries)
    assert len(pair.orders._runs) == 4
    assert pair.tell(1, *entries[:3]) is None
    assert pair.tell(1, *entries[3:]) is None
    assert pair.tell(1, *entries) is None
    assert pair.tell(0, *entries[:10]) is None
    pair.tell(1, *entries)
    assert pair.tell(0, C) is None  # Only where what is left begins, it shows.
    found = pair.tell(0, *entries, *entries)
    assert "not known any more" in found.rows[1][1]
    assert not found.is_variant


def test_many_entries_take_several_messages(pair):
    entries = [A, B] * 3000
    assert pair.tell(0, *entries) is None
    assert pair.tell(1, *entries) is None
    assert pair.orders.where(1)["has run"] == 6000


def test_who_leaves_before_others_have_ended_is_named(pair):
    pair.tell(0, A, A)
    pair.tell(1, A)
    found = pair.orders.left(1)
    assert found.rows[1][1] == "left the job"
    failure = found.to_failure()
    assert (failure.rank, failure.kind) == (1, "exit")
    assert isinstance(failure.to_error(), CollectiveMismatchError)
    assert pair.orders.left(0) is not None


def test_those_behind_may_come_to_where_one_has_left(pair):
    pair.tell(0, A, B)
    assert pair.orders.left(0) is None
    assert pair.tell(1, A) is None
    assert pair.tell(1, B) is None
    assert pair.orders.left(1) is None


def test_a_stall_is_reported_once(pair):
    pair.tell(0, A, now=1.0)
    assert not pair.orders.is_stalled(5.0, 10.0)
    assert pair.orders.is_stalled(12.0, 10.0)
    assert not pair.orders.is_stalled(13.0, 10.0)
    pair.tell(1, A, now=14.0)
    assert not pair.orders.is_stalled(40.0, 10.0)
    assert pair.orders.where(0) == {"has run": 1, "last": "`a`", "at": "train.py:a"}


@pytest.mark.parametrize(
    "message",
    [
        {"from": 1},
        {"runs": [[A, 0]]},
        {"runs": [[A]]},
        {"runs": None},
        {"names": [[1]]},
        {"said": [[None, "", ""]]},
        {"entering": "x"},
    ],
    ids=str,
)
def test_nonsense_is_refused(pair, message):
    whole = {"from": 0, "runs": [], "names": [], "said": [], "entering": 0, **message}
    with pytest.raises((KeyError, TypeError, ValueError)):
        pair.orders.heard(0, whole, 0.0)


def test_nobody_watches_a_process_alone():
    order = Order()
    order.ran.extend([A, B])
    order.meet("workers", "x", "y")
    assert order.state()[0] == 3
    assert list(order.news()) == []
    order.restart()
    assert order.state() == [0, 0]
