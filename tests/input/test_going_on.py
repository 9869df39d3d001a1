"""A pass that failed or was interrupted does not look like one that has ended."""

from __future__ import annotations

import numpy as np
import pytest

import replicax as rx


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("source", ["list", "iterator"])
def test_going_on_after_an_uneven_batch_is_not_the_end(strategy, source, prefetch):
    batches = [np.arange(2), np.arange(3), np.arange(2)]
    batches = iter(batches) if source == "iterator" else batches
    options = rx.InputOptions(remainder="error", prefetch=prefetch)
    batches = iter(strategy.distribute_dataset(batches, options))
    next(batches)
    for _ in range(3):
        with pytest.raises(rx.errors.InvalidArgumentError, match="Global batch 1 has 3 rows"):
            next(batches)
    assert batches.step == 1


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("source", ["iterable", "iterator"])
def test_going_on_after_an_interrupt_loses_no_row_in_silence(strategy, source, prefetch):
    interrupts = [KeyboardInterrupt()]

    def rows():
        yield np.arange(2)
        if interrupts:
            raise interrupts.pop()
        yield np.arange(2, 4)

    class Rows:
        def __iter__(self):
            return rows()

    dataset = strategy.distribute_dataset(
        Rows() if source == "iterable" else rows(), rx.InputOptions(prefetch=prefetch)
    )
    batches = iter(dataset)
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    if source == "iterable":
        assert strategy.gather(next(batches), axis=0).tolist() == [2, 3]
        return
    for _ in range(2):
        with pytest.raises((KeyboardInterrupt, rx.errors.DataLossError)):
            next(batches)
