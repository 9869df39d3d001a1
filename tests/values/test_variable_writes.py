from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

UPDATES = {"assign": lambda old, new: new, "assign_add": np.add, "assign_sub": np.subtract}
IDS = rx.PerReplica([1.0, 5.0])


@pytest.fixture
def make(strategy):
    def make(value, **options):
        with strategy.scope():
            return rx.Variable(value, name="w", **options)

    return make


def update(variable, name, value):
    getattr(variable, name)(value)


# --- where a write can stand -------------------------------------------------------------------


@pytest.mark.parametrize("name", UPDATES)
def test_outside(make, name):
    for w in (make([1.0, 2.0]), rx.Variable([1.0, 2.0])):
        update(w, name, [4.0, 5.0])
        np.testing.assert_array_equal(w, UPDATES[name](np.array([1, 2]), np.array([4, 5])))


@pytest.mark.parametrize("name", UPDATES)
def test_in_cross_replica_context(runner, strategy, make, name):
    w = make([1.0, 2.0])

    def step(x):
        update(w, name, x)
        return w.value

    with strategy.scope():
        result = runner(step)(jnp.array([4.0, 5.0]))
    expected = UPDATES[name](np.array([1, 2]), np.array([4, 5]))
    np.testing.assert_array_equal(w, expected)
    np.testing.assert_array_equal(result, expected)
    assert [x.tolist() for x in w.values] == [expected.tolist()] * 2


@pytest.mark.parametrize("name", UPDATES)
def test_in_a_replica(run, make, name):
    w = make([1.0, 2.0])

    def replica_fn(x):
        update(w, name, x)
        return w.value

    result = run(replica_fn, jnp.array([4.0, 5.0]))
    expected = UPDATES[name](np.array([1, 2]), np.array([4, 5]))
    np.testing.assert_array_equal(result, expected)
    assert [x.tolist() for x in w.values] == [expected.tolist()] * 2


def test_several_writes_take_effect_in_order(run, make):
    w = make(1.0)

    def replica_fn():
        w.assign(3.0)
        w.assign_add(w.value)
        w.assign_sub(1.0)

    run(replica_fn)
    assert float(w) == 5.0


def test_the_value_may_be_another_variable(make):
    w, v = make(1.0), rx.Variable(2.0)
    w.assign(v)
    w.assign_add(w)
    w.assign_add(rx.Mirrored(1.0))
    assert float(w) == 5.0


def test_a_key(run, make):
    key = make(jax.random.key(0))

    def replica_fn():
        key.assign(jax.random.split(key.value)[0])

    run(replica_fn)
    expected = jax.random.split(jax.random.key(0))[0]
    assert (jax.random.key_data(key.value) == jax.random.key_data(expected)).all()


# --- what may be written -----------------------------------------------------------------------


@pytest.fixture(params=["outside", "eager", "compiled"])
def write(request, strategy):
    """`write(variable, update, value)` outside and in replicas of both runners."""

    def write(variable, name, value):
        if request.param == "outside":
            update(variable, name, value)
            return
        step = lambda: strategy.run(lambda: update(variable, name, value))  # noqa: E731
        (rx.function(step) if request.param == "compiled" else step)()

    return write


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("value", [1.0, jnp.ones(3), jnp.ones((2, 1)), [[1.0, 2.0]]], ids=str)
def test_another_shape_is_refused(write, make, name, value):
    w = make([1.0, 2.0])
    with pytest.raises(rx.errors.InvalidArgumentError, match=rf"`w\.{name}`.*shape \(2,\)"):
        write(w, name, value)
    np.testing.assert_array_equal(w, [1, 2])


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize(
    ("initial", "value", "given"),
    [
        (1, 1.5, "float"),
        (1, np.float32(1), "float32"),
        (1.0, 1j, "complex"),
        (jnp.bfloat16(1), np.float32(1), "float32"),
        (jnp.int8(1), np.int32(1), "int32"),
    ],
)
def test_a_dtype_that_loses_information_is_refused(write, make, name, initial, value, given):
    w = make(initial)
    match = rf"`w\.{name}` was given {given}, but.*{w.dtype}"
    with pytest.raises(rx.errors.InvalidArgumentError, match=match):
        write(w, name, value)
    assert w.value == initial


@pytest.mark.parametrize(
    ("initial", "value"), [(1.0, 2), (1, True), (1.0, jnp.bfloat16(2)), (jnp.float16(1), 2.0)]
)
def test_a_dtype_that_fits_is_converted(write, make, initial, value):
    w = make(initial)
    dtype = w.dtype
    write(w, "assign", value)
    assert (w.dtype, w.value) == (dtype, value)


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("value", ["text", None, object(), ["a", "b"], [[1.0], [1.0, 2.0]]])
def test_what_is_no_array_is_refused(write, make, name, value):
    w = make([1.0, 2.0])
    with pytest.raises(rx.errors.ArgumentTypeError, match=rf"given to `w\.{name}`"):
        write(w, name, value)
    np.testing.assert_array_equal(w, [1, 2])


@pytest.mark.parametrize("name", ["assign_add", "assign_sub"])
@pytest.mark.parametrize("initial", [True, jax.random.key(0)], ids=["bool", "key"])
def test_what_has_no_sums_is_refused(write, make, name, initial):
    w = make(initial)
    with pytest.raises(rx.errors.InvalidArgumentError, match="no sums or differences"):
        write(w, name, initial)


@pytest.mark.parametrize("name", UPDATES)
def test_a_per_replica_value_is_refused_in_cross_replica_context(runner, make, name):
    w = make(1.0)
    step = runner(lambda x: update(w, name, x))
    with pytest.raises(rx.errors.VaryingWriteError, match=r"Reduce the value first"):
        step(IDS)
    assert float(w) == 1.0


# --- varying writes ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize(
    "initial",
    [1.0, 1, 1j, jnp.bfloat16(1), jax.random.key(0)],
    ids=["float", "int", "complex", "bfloat16", "key"],
)
def test_a_varying_value_is_refused(run, make, name, initial):
    w = make(initial)
    is_key = jnp.issubdtype(w.dtype, jax.dtypes.prng_key)
    if is_key and name != "assign":
        return

    def replica_fn(x):
        new = jax.random.fold_in(w.value, x.astype(int)) if is_key else x.astype(w.dtype)
        update(w, name, new)

    with pytest.raises(rx.errors.VaryingWriteError, match=r"`w`") as caught:
        run(replica_fn, IDS)
    assert "test_variable_writes.py" in str(caught.value)
    assert "all_reduce('mean', value)" in str(caught.value)
    assert (np.asarray(w.value == initial)).all()


def test_a_write_on_some_replicas_only_is_refused(strategy, make):
    w = make(1.0)

    def replica_fn():
        if rx.get_replica_context().replica_id_in_sync_group == 1:
            w.assign(2.0)

    with pytest.raises(rx.errors.VaryingWriteError, match="did not write it"):
        strategy.run(replica_fn)
    assert float(w) == 1.0


def test_nothing_is_written_if_one_of_several_varies(run, make):
    good, bad = make(1.0), make(1.0)

    def replica_fn(x):
        good.assign(2.0)
        bad.assign(x)

    with pytest.raises(rx.errors.VaryingWriteError):
        run(replica_fn, IDS)
    assert (float(good), float(bad)) == (1.0, 1.0)


def test_nothing_is_written_if_the_function_raises(run, make):
    w = make(1.0)

    def replica_fn():
        w.assign(2.0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(replica_fn)
    assert float(w) == 1.0
    run(lambda: w.assign(3.0))
    assert float(w) == 3.0


def test_a_write_inside_a_transformation_is_refused(run, make):
    w = make(1.0)

    def replica_fn():
        jax.lax.scan(lambda c, x: (c, w.assign(x)), 0.0, jnp.ones(2))

    with pytest.raises(
        rx.errors.ContextError, match=r"inside a transformed function at .*test_variable_writes"
    ):
        run(replica_fn)
    assert float(w) == 1.0


# --- aggregation -------------------------------------------------------------------------------

AGGREGATED = {"sum": 6.0, "mean": 3.0, "only_first_replica": 1.0}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("aggregation", AGGREGATED)
def test_the_replicas_values_are_aggregated(run, make, name, aggregation):
    w = make(10.0, aggregation=aggregation)

    def replica_fn(x):
        update(w, name, x)
        return w.value

    result = run(replica_fn, IDS)
    expected = UPDATES[name](10.0, AGGREGATED[aggregation])
    assert float(result) == float(w) == expected


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("aggregation", ["sum", "only_first_replica"])
def test_integers_are_aggregated(run, make, name, aggregation):
    w = make(10, aggregation=aggregation)
    run(lambda x: update(w, name, x), rx.PerReplica([1, 5]))
    assert int(w) == UPDATES[name](10, int(AGGREGATED[aggregation]))
    assert w.dtype == jnp.int32


@pytest.mark.parametrize("aggregation", AGGREGATED)
def test_cross_replica_writes_are_not_aggregated(runner, strategy, make, aggregation):
    w = make(1.0, aggregation=aggregation)
    with strategy.scope():
        runner(w.assign_add)(2.0)
    assert float(w) == 3.0


def test_a_wrong_shape_is_refused_before_the_replicas_meet(run, make):
    w = make(1.0, aggregation="mean")
    with pytest.raises(rx.errors.InvalidArgumentError, match="shape"):
        run(lambda: w.assign(jnp.ones(2)))


def test_bfloat16_is_aggregated_in_its_dtype(run, make):
    w = make(jnp.bfloat16(0), aggregation="mean")
    run(lambda x: w.assign(x.astype(jnp.bfloat16)), IDS)
    assert (w.dtype, float(w)) == (jnp.bfloat16, 3.0)


# --- variables of others -----------------------------------------------------------------------

USES = {
    "read": lambda variable: variable.value + 1,
    "written": lambda variable: variable.assign(jnp.zeros(2)),
}


@pytest.mark.parametrize("use", USES)
def test_a_variable_of_another_strategy_is_refused(run, other, use):
    with other.scope():
        v = rx.Variable(jnp.ones(2), name="v")
    match = rf"`v` of {other.name} was {use} in a replica of MirroredStrategy"
    with pytest.raises(rx.errors.MixedStrategiesError, match=match):
        run(lambda: USES[use](v))
    np.testing.assert_array_equal(v, [1, 1])


@pytest.mark.parametrize("use", USES)
def test_a_variable_made_outside_of_the_scope_is_refused(run, use):
    v = rx.Variable(jnp.ones(2), name="v")
    match = rf"`v` was {use} in a replica.*outside of the strategy's scope"
    with pytest.raises(rx.errors.MixedStrategiesError, match=match):
        run(lambda: USES[use](v))
    np.testing.assert_array_equal(v, [1, 1])


def test_one_function_with_variables_of_two_strategies_is_refused(make, other):
    w = make(1.0)
    with other.scope():
        v = rx.Variable(1.0, name="v")
    with pytest.raises(rx.errors.MixedStrategiesError, match="variables of several") as caught:
        rx.function(lambda: w.value + v.value)()
    assert f"v         {other.name}" in str(caught.value)


def test_one_function_on_two_strategies_is_refused(strategy, other):
    @rx.function
    def step():
        return strategy.run(lambda: 1.0), other.run(lambda: 1.0)

    with pytest.raises(rx.errors.MixedStrategiesError, match="Make one function for each"):
        step()
