"""Messages between workers, where there is only one. Several: `tests/multi_worker`."""

from __future__ import annotations

import pytest

import replicax as rx
from replicax.cluster import _agreement, agree, gather, guard, is_alone, join_cluster
from replicax.cluster._compat import coordination_client


def test_one_worker_gets_its_own_data_as_json_has_it():
    assert gather("test", {"shape": (2, 3)}) == [{"shape": [2, 3]}]


def test_what_json_cannot_say_is_refused_also_alone():
    with pytest.raises(TypeError, match="not JSON serializable"):
        gather("test", object())


def test_a_process_without_a_job_is_alone():
    assert is_alone()
    assert coordination_client() is None
    assert join_cluster() is None
    with guard():
        pass


def test_one_worker_agrees_with_itself():
    (record,) = agree("something", {"rows": 3}, untold={"host": "a"})
    assert record["rows"] == 3
    assert record["host"] == "a"
    assert "test_gather.py" in record["at"]


def records(*changes):
    base = {"call": "f", "rows": 3, "host": "a", "at": "x.py:1"}
    return [base | change for change in changes]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (({}, {"rows": 4, "at": "y.py:2"}), ["The workers disagree on rows of f.", "4", "y.py:2"]),
        (({}, {"call": "g"}), ["The workers met in different calls.", "g"]),
        (({}, {"extra": 1}), ["The workers disagree on extra of f."]),
    ],
    ids=["fact", "call", "missing"],
)
def test_what_differs_is_told_with_a_row_a_worker(monkeypatch, changes, words):
    monkeypatch.setattr(_agreement, "meet", lambda *_, **__: records(*changes))
    with pytest.raises(rx.errors.CollectiveMismatchError) as caught:
        agree("f", {"rows": 3}, untold={"host": "a"})
    assert all(word in str(caught.value) for word in words)


def test_what_is_untold_may_differ(monkeypatch):
    monkeypatch.setattr(_agreement, "meet", lambda *_, **__: records({}, {"host": "b"}))
    assert [one["host"] for one in agree("f", {"rows": 3}, untold={"host": "a"})] == ["a", "b"]
