"""A report as text, JSON and an error; and how arrays are compared."""

from __future__ import annotations

import json

import numpy as np
import pytest

from replicax.errors import Table, VerificationError
from replicax.verification import Finding, Report, Status
from replicax.verification._compared import compared
from replicax.verification._profile import joined, total, without

FAILED = Finding(
    "parity",
    Status.FAILED,
    "`w` differs.",
    Table(("array", "apart"), [("w", np.float32(0.5))]),
    why="Summed.",
    fix="Use MEAN.",
)
WARNING = Finding("rows", Status.WARNING, "8 of 10 rows.")


def report(*findings):
    return Report("step", "MirroredStrategy#1", 2, findings)


def test_only_a_failed_check_makes_it_fail():
    assert report(WARNING).ok
    report(WARNING).raise_if_failed()

    with pytest.raises(VerificationError) as raised:
        report(WARNING, FAILED).raise_if_failed()
    words = str(raised.value)
    assert "`step` on 2 replicas failed 1 check." in words
    assert "Why: Summed." in words
    assert "8 of 10" not in words


def test_the_text_has_a_line_for_each_check_and_the_tables():
    text = str(report(WARNING, FAILED))

    assert "step on 2 replica(s) of MirroredStrategy#1: FAILED" in text
    assert "rows    warning  8 of 10 rows." in text
    assert "array  apart" in text
    assert text.count("What to do: Use MEAN.") == 1


def test_json_holds_it_all():
    told = json.loads(report(WARNING, FAILED).to_json())

    assert told["ok"] is False
    assert [each["status"] for each in told["findings"]] == ["warning", "failed"]
    assert told["findings"][1]["table"] == {"columns": ["array", "apart"], "rows": [["w", 0.5]]}
    assert told["facts"]["losses"] == []


def entry(before, replicas, one, reverse, dtype=np.float32):
    arrays = [{"w": np.asarray(x, dtype)} for x in (before, replicas, one, reverse)]
    [found] = compared(*arrays, 4)
    return found


def test_the_change_counts_and_not_the_value():
    # 1e-3 of a weight of 1 is small beside the weight, and all of its change.
    assert entry([1.0], [1.002], [1.001], [1.001]).differs
    assert not entry([1.0], [1.0010001], [1.001], [1.001]).differs


def test_what_the_order_of_rows_does_is_allowed_ten_times():
    assert not entry([0.0], [1.0 + 5e-4], [1.0], [1.0 - 1e-4]).differs
    assert entry([0.0], [1.0 + 5e-4], [1.0], [1.0]).differs


def test_integers_must_be_equal_and_nan_is_itself():
    assert entry([1, 2], [1, 3], [1, 4], [1, 4], np.int32).differs
    assert not entry([0.0], [np.nan], [np.nan], [np.nan]).differs
    assert entry([0.0], [np.nan], [1.0], [1.0]).differs


def test_a_multiple_fits_within_the_tolerance_of_its_size():
    found = entry([0.0, 0.0], [2.0, 4.0], [1.0, 2.0], [1.0, 2.0])

    assert found.fits(found.one * 2)
    assert not found.fits(found.one * 2.01)
    assert not found.fits(found.one[:1])


def test_intervals_are_joined_and_cut_out():
    busy = joined([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])

    own = without(busy, joined([(1.5, 2.0), (2.5, 5.5)]))

    assert own == [(0.0, 1.5), (2.0, 2.5), (5.5, 6.0)]
    assert total(own) == pytest.approx(2.5)
