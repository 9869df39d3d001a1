"""The places of iterators of distributed datasets in checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import Checkpoint


def shuffled(strategy, seed=0):
    rows = rx.data.from_arrays(np.arange(10)).shuffle(seed=seed)
    return strategy.distribute_dataset(rows.batch(4))


def rows(strategy, batches):
    return [strategy.gather(batch, axis=0).tolist() for batch in batches]


def test_an_iterator_goes_on_wherever_it_stands(path, part, strategies):
    dataset = shuffled(strategies[2])
    list(dataset)
    batches = iter(dataset)
    next(batches)
    Checkpoint(loop=part(inputs=({"train": batches}, 0.5))).save(path)

    dataset = shuffled(strategies[3])
    again = iter(dataset)
    loop = part(inputs=({"train": again}, 0.0))
    Checkpoint(loop=loop).restore(path).assert_consumed()
    assert (loop.inputs[0]["train"], loop.inputs[1]) == (again, 0.5)
    assert (again.epoch, again.step) == (1, 1)
    assert rows(strategies[3], again) == rows(strategies[2], batches)
    assert iter(dataset).epoch == 2


def test_what_was_placed_ahead_is_not_lost(path, strategies):
    options = rx.InputOptions(prefetch=8)
    batches = [np.arange(2) + step for step in range(6)]
    first = iter(strategies[2].distribute_dataset(batches, options))
    next(first)
    Checkpoint(batches=first).save(path)
    again = iter(strategies[2].distribute_dataset(batches, options))
    next(again)
    next(again)
    Checkpoint(batches=again).restore(path)
    assert rows(strategies[2], again) == [batch.tolist() for batch in batches[1:]]


def test_one_iterator_in_two_places_is_saved_once(path, strategies):
    batches = iter(shuffled(strategies[1]))
    next(batches)
    Checkpoint(a=batches, b=[batches]).save(path)
    again = iter(shuffled(strategies[1]))
    Checkpoint(b=[again]).restore(path).assert_consumed()
    assert again.step == 1


def test_the_place_in_another_dataset_is_refused_and_nothing_restored(path, strategies):
    Checkpoint(batches=iter(shuffled(strategies[2])), step=3).save(path)
    batches = iter(shuffled(strategies[2], seed=1))
    next(batches)
    checkpoint = Checkpoint(batches=batches, step=0)
    with pytest.raises(rx.errors.InvalidArgumentError, match="another dataset") as caught:
        checkpoint.restore(path)
    assert "`batches`" in caught.value.__notes__[0]
    assert (checkpoint.step, batches.step) == (0, 1)


def test_a_generator_that_was_read_further_is_refused_and_nothing_restored(path, strategies):
    def distribute():
        return strategies[2].distribute_dataset(np.arange(2) for _ in range(4))

    Checkpoint(batches=iter(distribute()), step=3).save(path)
    batches = iter(distribute())
    next(batches)
    checkpoint = Checkpoint(batches=batches, step=0)
    with pytest.raises(rx.errors.FailedPreconditionError, match="cannot be set"):
        checkpoint.restore(path)
    assert checkpoint.step == 0
    assert len(list(batches)) == 3


def test_an_iterator_that_is_not_in_use_any_more_is_refused(path, strategies):
    dataset = shuffled(strategies[2])
    batches = iter(dataset)
    checkpoint = Checkpoint(batches=batches)
    list(batches)
    checkpoint.save(path)  # between two passes it tells the place
    later = iter(dataset)
    with pytest.raises(rx.errors.FailedPreconditionError, match=r"`batches` is .* has ended"):
        checkpoint.save(path)
    checkpoint.restore(path)
    assert rows(strategies[2], batches) == []
    Checkpoint(batches=later).save(path)


def test_a_place_is_no_number(path, strategies):
    batches = iter(shuffled(strategies[1]))
    Checkpoint(x=batches).save(path)
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"x +position of an iterator +int"):
        Checkpoint(x=1).restore(path)
    Checkpoint(x=1).save(path)
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"x +int +position of an iterator"):
        Checkpoint(x=batches).restore(path)


def test_an_iterator_that_is_not_in_the_checkpoint_is_refused(path, strategies):
    Checkpoint(step=1).save(path)
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"batches +missing"):
        Checkpoint(step=0, batches=iter(shuffled(strategies[1]))).restore(path)
