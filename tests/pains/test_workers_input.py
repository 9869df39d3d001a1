"""Uneven batches and input over two workers: groups A, B and D of the known pains.

Each test is named after its report. The workers have two replicas each; `workers.py` is their
program.
"""

from __future__ import annotations

import numpy as np
import pytest

# A test waits until the workers have come to its row.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(115)]


def flat(rows):
    return [row for step in rows for row in step]


def test_a2_a_worker_without_rows_leaves_the_evaluation_finite(both):
    mse, mae, rows = both("a2")
    assert (mse, mae) == (11, 3)
    assert rows == [[2, 1], [2, 0]]


def test_a10_workers_with_3_and_5_batches_take_5_steps(both):
    own = [np.arange(2 * i, 2 * i + 2) for i in range(5)]
    means = [np.mean([own[i], own[i] + 100]) if i < 3 else np.mean(own[i]) + 100 for i in range(5)]
    assert both("a10") == pytest.approx(means)


def test_a13_merged_state_holds_21_distinct_ids(both):
    assert both("a13") == [1] * 21


def test_a16_an_odd_number_of_batches_over_two_workers(both):
    assert both("a16") == [0 + 1 + 10 + 11, 2 + 3]


def test_b14_a_validation_loss_weighs_rows_and_is_equal_on_both(both):
    assert both("b14") == [(1 + 2 + 3 + 10) / 4]


def test_d1_the_rows_of_two_workers_are_disjoint_and_complete(each):
    assert each("d1") == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_d2_without_sharding_every_row_is_read_twice(both):
    steps, counts = both("d2")
    assert steps == 4
    assert counts == [2] * 8


def test_d3_one_file_for_two_workers(each):
    refused, notices, policies, rows = zip(*each("d3"), strict=True)
    assert all("1 file cannot be shared out over 2" in text for text in refused)
    assert [len(messages) for messages in notices] == [1, 1]
    assert policies == ("DATA", "DATA")
    assert sorted(flat(flat(rows))) == list(range(8))


def test_d3_enough_files_are_shared_out_whole(each):
    first, second = each("files_by_file")
    assert first == {"file": ["FILE", [0, 2, 4, 6]], "auto": ["FILE", [0, 2, 4, 6]]}
    assert second == {"file": ["FILE", [1, 3, 5, 7]], "auto": ["FILE", [1, 3, 5, 7]]}


def test_d3_or_where_the_dataset_says_so(each):
    assert each("hint") == [["HINT", [[0, 2], [4, 6]]], ["HINT", [[1, 3], [5, 7]]]]


def test_d4_a_custom_reader_reaches_each_replica_once(each):
    first, second = each("d4")
    assert first == [[[0, 1], [4, 5], [8, 9]]] * 2
    assert second == [[[2, 3], [6, 7], []]] * 2


def test_d5_three_epochs_without_a_step_count(both):
    assert both("d5") == [[0 + 1 + 2 + 3, 4 + 5 + 6 + 7, 8 + 9]] * 3


def test_d7_two_readers_a_worker_read_12_rows_once(each):
    first, second = each("d7")
    assert [len(rows) for rows in first + second] == [2] * 6
    assert sorted(flat(first) + flat(second)) == list(range(12))


def test_d8_epochs_differ_and_workers_agree_on_the_order(each):
    first, second = each("d8")
    for epoch in range(3):
        assert sorted(first[epoch] + second[epoch]) == list(range(12))
    assert first[0] != first[1] != first[2] != first[0]


def test_d11_a_generator_of_10_rows(each):
    first, second = each("d11")
    assert len(first) == len(second) == 3
    assert sorted(flat(first) + flat(second)) == list(range(10))


def test_d13_the_plan_tells_what_each_worker_reads(each):
    for text, promised, read in each("d13"):
        assert "rows of step 0" in text
        assert promised == read
    rows = [flat(read) for _, _, read in each("d13")]
    assert sorted(rows[0] + rows[1]) == list(range(100))
