"""Batches joined to runs: each in its place, none twice."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from replicax.input._ahead import placed_ahead
from replicax.input._runs import RunLength
from replicax.input._split import HostBatch


def source(forms):
    """Batches of two replicas whose only number is their place; so many rows, padded if below 0."""
    structure = jax.tree.structure(0)
    for number, form in enumerate(forms):
        rows = np.full((2, abs(form)), number, np.float32)
        yield number + 1, HostBatch(structure, [rows], np.ones(2, np.int32) if form < 0 else None)


def opened(forms, strategy, *, size=1, prefetch=0, is_placed=False):
    length = RunLength(size, is_placed=is_placed)
    return placed_ahead(source(forms), 0, strategy.replica_mesh, prefetch, length)


def numbers(run):
    """The places of its batches, by three ways that must agree."""
    placed = np.asarray(run.placed().stacked)[:, :, 0].T.tolist()
    assert placed == [[i, i] for i in run.steps[:-1]]
    assert np.asarray(run.first().stacked)[0, 0] == run.steps[0]
    assert run.count == len(placed)
    return list(run.steps[:-1])


@hypothesis.given(
    forms=st.lists(st.sampled_from([1, 1, 1, 2, -1, -2]), max_size=12),
    size=st.integers(1, 5),
    data=st.data(),
)
def test_whatever_is_taken_and_put_back_comes_in_order(strategy, forms, size, data):
    batches, at = opened(forms, strategy, size=size), 0
    while True:
        runs = batches.take_up_to(data.draw(st.integers(1, 6)))
        if not runs:
            break
        for run in runs:
            assert {forms[i] for i in run.steps[:-1]} == {forms[run.steps[0]]}
        assert [x for run in runs for x in numbers(run)] == list(
            range(at, at + sum(run.count for run in runs))
        )
        kept = data.draw(st.integers(0, len(runs)))
        at += sum(run.count for run in runs[:kept])
        for run in reversed(runs[kept:]):
            batches.put_back(run)
        if kept == 0:
            assert numbers(batches.take_up_to(1)[0]) == [at]
            at += 1
    assert at == len(forms)


def test_parts_and_joins(strategy):
    first, second = opened([1] * 5, strategy, size=3).take_up_to(5)
    assert numbers(first.joined(second)) == [0, 1, 2, 3, 4]
    assert first.part(0, 3) is first
    assert numbers(first.part(1, 2)) == [1]
    every_second = first.joined(second).part(0, 5, 2)
    assert np.asarray(every_second.placed().stacked)[0, :, 0].tolist() == [0, 2, 4]
    for other in (2, -1):
        full, changed = opened([1, other], strategy).take_up_to(2)
        assert full.joined(changed) is None


@pytest.mark.parametrize("prefetch", [0, 2])
def test_runs_begin_where_calls_begin_after_a_batch_was_taken_by_hand(strategy, prefetch):
    """Only the first call has to join batches that were placed one by one."""
    batches = opened([1] * 17, strategy, prefetch=prefetch)
    batches.take()
    batches.make_runs(4, is_placed=True)
    calls = [batches.take_up_to(4) for _ in range(4)]
    assert [sum(run.count for run in runs) for runs in calls] == [4] * 4
    assert [len(runs) for runs in calls[1:]] == [1] * 3
    assert all(runs[0]._placed is not None for runs in calls[1:])  # as one array, ahead of the call


def test_what_comes_before_an_error_is_given_out(strategy):
    def broken():
        yield from source([1, 1])
        raise OSError("disk")

    length = RunLength(3, is_placed=False)
    batches = placed_ahead(broken(), 0, strategy.replica_mesh, 2, length)
    assert batches.goes_on
    with pytest.raises(OSError, match="disk"):
        batches.take_up_to(3)
    assert not batches.goes_on
    assert [numbers(run) for run in batches.take_up_to(2)] == [[0, 1]]
