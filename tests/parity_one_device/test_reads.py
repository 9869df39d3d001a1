"""Values that left a variable stay what they were, although steps donate the variables' memory."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .models import Functional, cut, initial_state, mirrored, rows


def pointers(array):
    """Where each device's copy of an array lies."""
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


def held(variable):
    """The array that a variable holds now, without the engine taking this for a read."""
    return variable._value


@pytest.fixture(params=[1, 4], ids=["1 replica", "4 replicas"])
def strategy(request):
    return mirrored(request.param)


@pytest.fixture
def variable(strategy):
    with strategy.scope():
        return rx.Variable(jnp.arange(3.0), name="w")


@pytest.fixture
def add_one(strategy, variable, runner):
    def replica_step():
        variable.assign_add(jnp.ones(3))

    return runner(lambda: strategy.run(replica_step))


@pytest.fixture
def compiled_add_one(strategy, variable):
    return rx.function(lambda: strategy.run(lambda: variable.assign_add(jnp.ones(3))))


def now(variable):
    return np.array(variable.value)


def read_by_value(variable):
    return variable.value


def read_by_values(variable):
    return variable.values[-1]


def read_by_local_results(variable):
    return variable.strategy.local_results(variable)[0]


def read_by_arithmetic(variable):
    return +variable.value


def read_in_a_replica(variable):
    return variable.strategy.run(lambda: variable.value)


def read_variable_in_a_replica(variable):
    return variable.strategy.run(lambda: variable)


def read_in_a_step(variable):
    return rx.function(lambda: variable.strategy.run(lambda: variable.value))()


def read_at_the_top_of_a_step(variable):
    return rx.function(lambda: variable.value)()


def read_variable_at_the_top_of_a_step(variable):
    return rx.function(lambda: variable)()


READS = [
    read_by_value,
    read_by_values,
    read_by_local_results,
    read_by_arithmetic,
    read_in_a_replica,
    read_variable_in_a_replica,
    read_in_a_step,
    read_at_the_top_of_a_step,
    read_variable_at_the_top_of_a_step,
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("read", READS)
def test_what_was_read_outlives_later_steps(variable, add_one, read):
    add_one()
    first = read(variable)
    add_one()
    second = read(variable)
    for _ in range(3):
        add_one()
    assert not first.is_deleted()
    np.testing.assert_array_equal(first, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(second, [2.0, 3.0, 4.0])
    np.testing.assert_array_equal(now(variable), [5.0, 6.0, 7.0])


def test_what_a_gradient_read_outlives_later_steps(runner, compiled_add_one, variable, strategy):
    def replica_fn():
        def loss():
            return jnp.sum(variable.value**2), variable.value

        (_, aux), _ = rx.value_and_grad(loss, [variable], has_aux=True)()
        return aux

    read = runner(lambda: strategy.run(replica_fn))()
    compiled_add_one()
    compiled_add_one()
    np.testing.assert_array_equal(read, [0.0, 1.0, 2.0])


def test_what_a_step_returns_of_its_own_writes_outlives_later_steps(runner, strategy, variable):
    def replica_step():
        variable.assign_add(jnp.ones(3))
        return variable.value, variable.value * 2

    step = runner(lambda: strategy.run(replica_step))
    results = [step() for _ in range(4)]
    for i, (value, twice) in enumerate(results):
        np.testing.assert_array_equal(value, np.arange(3.0) + i + 1)
        np.testing.assert_array_equal(twice, 2 * (np.arange(3.0) + i + 1))


def test_what_was_assigned_outlives_later_steps(runner, strategy, variable, compiled_add_one):
    """The array of an argument, and of another variable, stays with its owner."""
    with strategy.scope():
        other = rx.Variable(jnp.full(3, 5.0))
    plain, placed = jnp.full(3, 7.0), jax.device_put(jnp.full(3, 9.0), held(variable).sharding)

    assign = runner(lambda x: strategy.run(variable.assign, args=(x,)))
    for argument, value in ((plain, 7.0), (placed, 9.0)):
        assign(argument)
        compiled_add_one()
        compiled_add_one()
        np.testing.assert_array_equal(argument, np.full(3, value))
        np.testing.assert_array_equal(now(variable), np.full(3, value + 2))

    runner(lambda: strategy.run(lambda: variable.assign(other)))()
    compiled_add_one()
    compiled_add_one()
    np.testing.assert_array_equal(now(other), np.full(3, 5.0))
    np.testing.assert_array_equal(now(variable), np.full(3, 7.0))


def test_direct_assignments_take_a_copy(strategy, variable, compiled_add_one):
    array = jax.device_put(jnp.full(3, 7.0), held(variable).sharding)
    variable.assign(array)
    compiled_add_one()
    compiled_add_one()
    np.testing.assert_array_equal(array, np.full(3, 7.0))
    initial = jax.device_put(jnp.full(3, 1.0), held(variable).sharding)
    with strategy.scope():
        fresh = rx.Variable(initial)
    add = rx.function(lambda: strategy.run(lambda: fresh.assign_add(jnp.ones(3))))
    add()
    add()
    np.testing.assert_array_equal(initial, np.full(3, 1.0))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "convert", [np.asarray, np.array, lambda v: np.asarray(v.value), lambda v: v.value.__array__()]
)
def test_conversions_to_numpy_stay_valid(variable, compiled_add_one, convert):
    compiled_add_one()
    view = convert(variable)
    for _ in range(5):
        compiled_add_one()
    gc.collect()
    np.testing.assert_array_equal(view, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(np.asarray(variable), [6.0, 7.0, 8.0])


def test_a_variable_outside_of_every_strategy_lends_too(runner):
    variable, argument = rx.Variable(jnp.arange(3.0)), jnp.full(3, 4.0)

    def add():
        variable.assign_add(jnp.ones(3))
        return variable.value

    step = runner(add)
    read = variable.value
    results = [step() for _ in range(3)]
    returned = rx.function(lambda: variable.value)()
    rx.function(variable.assign)(argument)
    compiled = rx.function(add)
    compiled()
    compiled()
    np.testing.assert_array_equal(read, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(returned, [3.0, 4.0, 5.0])
    np.testing.assert_array_equal(argument, np.full(3, 4.0))
    np.testing.assert_array_equal(np.asarray(variable), np.full(3, 6.0))
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, np.arange(3.0) + i + 1)


# --- a copy is made when, and only when, the value was read ------------------------------------


def test_a_step_reuses_the_memory_of_what_nobody_read(variable, compiled_add_one):
    compiled_add_one()
    before = held(variable)
    where = pointers(before)
    compiled_add_one()
    assert before.is_deleted()  # it was donated,
    assert pointers(held(variable)) == where  # and its memory holds the new value


def test_one_copy_is_made_for_one_read(variable, compiled_add_one):
    compiled_add_one()
    read = variable.value
    where = pointers(read)
    compiled_add_one()
    assert pointers(read) == where
    assert not set(pointers(held(variable))) & set(where)
    after = held(variable)
    compiled_add_one()  # nothing was read since: no second copy
    assert after.is_deleted()
    assert not read.is_deleted()


def test_reads_of_one_variable_cost_no_copy_of_another(strategy):
    with strategy.scope():
        read, unread = rx.Variable(jnp.zeros(3)), rx.Variable(jnp.zeros(3))

    @rx.function
    def step():
        def replica_step():
            read.assign_add(jnp.ones(3))
            unread.assign_add(jnp.ones(3))

        strategy.run(replica_step)

    step()
    kept, given = read.value, held(unread)
    step()
    assert not kept.is_deleted()
    assert given.is_deleted()


def test_a_read_is_noticed_by_every_step_that_writes(strategy, variable):
    """Two functions write one variable; each must see a read that happened since its last call."""
    one = rx.function(lambda: strategy.run(lambda: variable.assign_add(jnp.ones(3))))
    two = rx.function(lambda: strategy.run(lambda: variable.assign_add(jnp.ones(3))))
    values = []
    for step in (one, two, two, one, one, two):
        step()
        values.append(variable.value)
    for i, value in enumerate(values):
        np.testing.assert_array_equal(value, np.arange(3.0) + i + 1)


def test_a_step_that_only_reads_copies_and_deletes_nothing(strategy, variable):
    look = rx.function(lambda: strategy.run(lambda: variable.value * 2))
    before = held(variable)
    look()
    look()
    assert held(variable) is before
    assert not before.is_deleted()


# --- functional state --------------------------------------------------------------------------


def leaves_after_two_steps(*, donate, n):
    trainer = Functional("momentum", mirrored(n), compiled=True, donate=donate)
    first, second = trainer.strategy.distribute_dataset(cut(rows(16), 8))
    state, _ = trainer.step(initial_state("momentum"), first)
    trainer.step(state, second)
    return jax.tree.leaves(state)


@pytest.mark.parametrize("n", [1, 4])
def test_donated_state_is_given_away(n):
    assert all(leaf.is_deleted() for leaf in leaves_after_two_steps(donate=True, n=n))


@pytest.mark.parametrize("n", [1, 4])
def test_state_that_is_not_donated_stays(n):
    leaves = leaves_after_two_steps(donate=False, n=n)
    assert not any(leaf.is_deleted() for leaf in leaves)
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves)


@pytest.mark.parametrize("n", [1, 4])
def test_donated_state_reuses_its_memory(n):
    trainer = Functional("momentum", mirrored(n), compiled=True, donate=True)
    first, second = trainer.strategy.distribute_dataset(cut(rows(16), 8))
    state, _ = trainer.step(initial_state("momentum"), first)
    where = [pointers(leaf) for leaf in jax.tree.leaves(state)]
    state, _ = trainer.step(state, second)
    after = [pointers(leaf) for leaf in jax.tree.leaves(state)]
    assert sorted(map(tuple, after)) == sorted(map(tuple, where))
