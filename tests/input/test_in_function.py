"""A compiled step takes batches by itself: another one in each call, and none twice or never."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import replicax as rx

N = 7  # rows: with batches of 3 a remainder of one row
BATCHES = [3.0, 12.0, 6.0]  # the sums of rows 0 to 6 in batches of 3


@pytest.fixture
def batches(strategy):
    """`batches()`: a new iterator over the rows 0 to 6."""
    rows = np.arange(N, dtype=np.float32)
    dataset = strategy.distribute_dataset(rows, rx.InputOptions(global_batch_size=3))
    return lambda: iter(dataset)


def total(strategy, batch):
    def replica_fn(rows):
        return rx.get_replica_context().global_sum(rows)

    return strategy.run(replica_fn, args=(batch,))


def until_the_end(step, *args):
    before = args[0].step if args else 0
    found = [float(step(*args)) for _ in BATCHES[before:]]
    with pytest.raises(rx.errors.OutOfRangeError, match=r"epoch \d has 3 steps"):
        step(*args)
    return found


@pytest.mark.parametrize("take", [next, rx.DistributedIterator.get_next], ids=["next", "get_next"])
def test_an_argument_gives_each_call_the_next_batch(strategy, batches, take):
    step = rx.function(lambda iterator: total(strategy, take(iterator)))
    for _ in range(2):  # The next epoch's iterator takes the place of the first one's.
        assert until_the_end(step, batches()) == BATCHES


def test_both_runners_do_the_same(runner, strategy, batches):
    step = runner(lambda iterator, factor: total(strategy, iterator.get_next()) * factor)
    iterator = batches()
    assert until_the_end(lambda: step(factor=2.0, iterator=iterator)) == [6.0, 24.0, 12.0]


def test_the_end_without_an_error(runner, strategy, batches):
    def step(iterator):
        batch = iterator.get_next_as_optional()
        return total(strategy, batch.get_value()) if batch.has_value() else np.float32(-1)

    step, iterator = runner(step), batches()
    assert [float(step(iterator)) for _ in range(5)] == [*BATCHES, -1, -1]


def test_several_batches_a_call(runner, strategy, batches):
    """What is left for the last call is too little: it raises, and the batch is still there."""

    @runner
    def step(iterator):
        return sum(total(strategy, next(iterator)) for _ in range(2))

    iterator = batches()
    assert float(step(iterator)) == 15
    if not isinstance(step, rx.Function):
        return  # In Python the first of the two was taken by then, as anybody can see.
    with pytest.raises(rx.errors.OutOfRangeError):
        step(iterator)
    assert iterator.step == 2
    assert float(total(strategy, next(iterator))) == 6


def test_an_iterator_from_outside(strategy, batches):
    iterator = batches()

    @rx.function
    def step():
        return total(strategy, iterator.get_next())

    assert [float(step()) for _ in BATCHES] == BATCHES
    with pytest.raises(rx.errors.OutOfRangeError) as caught:
        step()
    assert "pass the iterator to the step as an argument" in caught.value.__notes__[0]


def test_two_iterators_are_told_apart(strategy, batches):
    step = rx.function(lambda a, b: total(strategy, next(a)) + 100 * total(strategy, next(b)))
    a, b = batches(), batches()
    next(a)
    assert float(step(a, b)) == 12 + 300
    assert float(step(b, a)) == 12 + 600
    assert (a.step, b.step) == (3, 2)


def test_a_position_counts_what_the_steps_took(strategy, batches):
    step = rx.function(lambda iterator: total(strategy, next(iterator)))
    iterator, resumed = batches(), batches()
    step(iterator)
    assert iterator.get_state()["step"] == 1
    resumed.set_state(iterator.get_state())
    assert until_the_end(step, resumed) == BATCHES[1:]


def test_variables_and_methods(strategy, batches):
    with strategy.scope():
        seen = rx.Variable(0.0)

    class Model:
        @rx.function
        def step(self, iterator, factor):
            def replica_fn(rows):
                seen.assign_add(rx.get_replica_context().global_sum(rows) * factor)

            strategy.run(replica_fn, args=(iterator.get_next(),))

    model = Model()
    iterator = batches()
    for _ in range(3):
        model.step(iterator, 2.0)
    assert float(seen) == 2 * sum(BATCHES)


def test_how_many_batches_may_depend_on_a_static_argument(strategy, batches):
    @rx.function(static_argnames="count")
    def step(iterator, count):
        return sum(total(strategy, next(iterator)) for _ in range(count))

    iterator = batches()
    assert [float(step(iterator, count)) for count in (2, 1)] == [15.0, 6.0]


def test_batches_that_a_later_trace_does_not_take_are_left(strategy, batches):
    """The number of batches depends on the shape of another argument."""

    @rx.function
    def step(iterator, like):
        return sum(total(strategy, next(iterator)) for _ in like)

    iterator = batches()
    assert float(step(iterator, np.zeros(2))) == 15
    assert float(step(iterator, np.zeros(1))) == 6
    assert float(step(batches(), np.zeros(1))) == 3


def test_looking_at_a_step_takes_no_batch(strategy, batches):
    step = rx.function(lambda iterator: total(strategy, next(iterator)))
    iterator = batches()
    assert [c.kind for c in step.collectives(iterator)] == ["all-reduce"]
    assert len(step.requested_collectives(iterator)) == 1
    assert until_the_end(step, iterator) == BATCHES


def test_an_error_in_the_step_is_the_users_own(strategy, batches):
    """And the function works afterwards."""
    fails = [True]

    @rx.function
    def step(iterator):
        batch = next(iterator)
        if fails[0]:
            raise KeyError("row")
        return total(strategy, batch)

    with pytest.raises(KeyError, match="row"):
        step(batches())
    fails.clear()
    fails.append(False)
    assert until_the_end(step, batches()) == BATCHES


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize("loop", [iter, list], ids=["iter", "list"])
def test_a_loop_over_batches_stands_outside(strategy, batches, loop):
    iterator = batches()
    for one in (iterator, iterator._dataset):
        with pytest.raises(rx.errors.ContextError, match="Loop outside"):
            rx.function(lambda one=one: loop(one) and 0)()
    assert iterator.step == 0


def test_a_batch_in_a_body_that_is_traced_once_is_refused(strategy, batches):
    @rx.function
    def step(iterator):
        def body(carry, _):
            return carry + total(strategy, next(iterator)), None

        return jax.lax.scan(body, 0.0, None, length=2)[0]

    iterator = batches()
    with pytest.raises(rx.errors.ContextError, match="transformed function"):
        step(iterator)
    assert iterator.step == 0


def test_a_loop_without_end_is_refused(strategy):
    class Endless:
        def __iter__(self):
            while True:
                yield np.zeros(2)

    @rx.function
    def step(iterator):
        while True:
            next(iterator)

    with pytest.raises(rx.errors.ResourceExhaustedError, match="more than 64 batches"):
        step(iter(strategy.distribute_dataset(Endless())))
