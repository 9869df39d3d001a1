"""`rx.check_replicas_work`: steps and rows of each replica, by the plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replicax as rx


@pytest.fixture(scope="module")
def four():
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(4)])


def work(strategy, rows, batch, **options):
    dataset = strategy.distribute_dataset(np.arange(rows), rx.InputOptions(global_batch_size=batch))
    return rx.check_replicas_work(dataset, **options)


def test_g7_the_table_shows_steps_and_rows_of_each_replica(four):
    shown = str(work(four, 22, 8)).splitlines()

    assert [line.split() for line in shown[1:]] == [
        ["0", "cpu:0", "3", "of", "3", "6"],
        ["1", "cpu:1", "3", "of", "3", "6"],
        ["2", "cpu:2", "3", "of", "3", "6"],
        ["3", "cpu:3", "2", "of", "3", "4"],
    ]


def test_g7_a_replica_without_rows_is_an_error_that_names_it(four):
    with pytest.raises(rx.errors.FailedPreconditionError) as caught:
        work(four, 9, 3)

    assert "Replica(s) 3 have no row" in str(caught.value)
    assert "cpu:3   0 of 3     0" in str(caught.value)


def test_g7_one_device_where_four_are_expected_is_an_error():
    alone = rx.MirroredStrategy(["cpu:0"])

    assert work(alone, 8, 4).replicas[0].rows == 8
    with pytest.raises(rx.errors.FailedPreconditionError, match=r"1 replica\(s\), not 4"):
        work(alone, 8, 4, replicas=4)


@given(rows=st.integers(12, 60), batch=st.sampled_from([4, 8, 12]))
def test_no_row_is_counted_twice_or_left_out(four, rows, batch):
    found = work(four, rows, batch)

    assert sum(each.rows for each in found.replicas) == rows
    assert found.steps == -(-rows // batch)


@pytest.mark.parametrize("source", [iter([np.ones(2)]), [np.ones(2)]], ids=["once", "list"])
def test_rows_that_are_not_numbered_are_not_guessed(four, source):
    with pytest.raises(rx.errors.UnimplementedError, match="not known before"):
        rx.check_replicas_work(four.distribute_dataset(source))


def test_something_else_is_refused():
    with pytest.raises(rx.errors.ArgumentTypeError, match="no distributed dataset"):
        rx.check_replicas_work([1, 2])
