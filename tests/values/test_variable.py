from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


@pytest.fixture
def w(strategy):
    with strategy.scope():
        return rx.Variable([1.0, 2.0], name="w")


# --- creation ----------------------------------------------------------------------------------


def test_outside_of_a_scope_it_is_one_array():
    w = rx.Variable(2.0)
    assert type(w) is rx.Variable
    assert w.strategy is None
    assert len(w.value.devices()) == 1


def test_in_a_scope_it_has_a_copy_a_replica(w, strategy):
    assert type(w) is rx.MirroredVariable
    assert isinstance(w, (rx.Variable, rx.Mirrored, rx.DistributedValues))
    assert w.strategy is strategy
    devices = [next(iter(copy.devices())) for copy in w.values]
    assert devices == list(strategy.replica_mesh.devices)
    assert [copy.tolist() for copy in w.values] == [[1.0, 2.0]] * 2


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.0, "float32"), (1, "int32"), (True, "bool"), (1j, "complex64"), (np.float64(1), "float32")],
)
def test_dtypes(value, dtype):
    assert rx.Variable(value).dtype == dtype


def test_a_dtype_can_be_asked_for():
    assert rx.Variable(1, dtype=jnp.bfloat16).dtype == jnp.bfloat16


def test_a_callable_is_called_once(strategy):
    calls = []
    with strategy.scope():
        w = rx.Variable(lambda: calls.append(1) or jnp.ones(2))
    assert calls == [1]
    np.testing.assert_array_equal(w, [1, 1])


def test_facts(w):
    assert (w.shape, w.dtype, w.ndim, w.size) == ((2,), jnp.float32, 1, 2)
    assert (w.name, w.trainable) == ("w", True)
    assert w.aggregation is rx.VariableAggregation.NONE
    assert w.synchronization is rx.VariableSynchronization.AUTO
    assert repr(w) == f"{w}" == "<MirroredVariable 'w' float32[2]>"
    assert repr(rx.Variable(1, name="n")) == "<Variable 'n' int32[]>"


def test_names_are_made_up_where_none_is_given():
    first, second = rx.Variable(1.0), rx.Variable(1.0)
    assert first.name.startswith("Variable_")
    assert first.name != second.name


def test_options_may_be_given_by_name():
    w = rx.Variable(1.0, synchronization="on_write", aggregation="Only_First_Replica")
    assert w.synchronization is rx.VariableSynchronization.ON_WRITE
    assert w.aggregation is rx.VariableAggregation.ONLY_FIRST_REPLICA


@pytest.mark.parametrize("options", [{"aggregation": "max"}, {"synchronization": 3}])
def test_unknown_options_list_the_known_ones(options):
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"one of (NONE|AUTO), .*or its name"):
        rx.Variable(1.0, **options)


@pytest.mark.parametrize("value", [1, True])
def test_a_mean_of_integers_is_refused(value):
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"`n`.*MEAN"):
        rx.Variable(value, name="n", aggregation="mean")


@pytest.mark.parametrize("value", ["text", None, object(), [[1.0], [1.0, 2.0]], ["a", "b"]])
def test_what_is_no_array_is_refused(value):
    with pytest.raises(rx.errors.ArgumentTypeError, match="initial value of variable `w`"):
        rx.Variable(value, name="w")


def test_a_per_replica_value_is_no_initial_value():
    with pytest.raises(rx.errors.InvalidArgumentError, match="start from one value"):
        rx.Variable(rx.PerReplica([1.0, 2.0]))


# --- independence of its source ----------------------------------------------------------------


@pytest.mark.parametrize("make", [np.array, jnp.array])
def test_it_does_not_share_memory_with_its_source(strategy, make):
    source = make([1.0, 2.0])
    with strategy.scope():
        w, plain = rx.Variable(source), None
    plain = rx.Variable(source)
    if isinstance(source, np.ndarray):
        source[:] = 9
    else:
        source.delete()
    np.testing.assert_array_equal(w, [1, 2])
    np.testing.assert_array_equal(plain, [1, 2])


@pytest.mark.parametrize("mirrored", [True, False])
def test_the_source_survives_steps_that_donate_the_variable(strategy, mirrored):
    source = strategy.replica_mesh.place_mirrored(jnp.ones(2)) if mirrored else jnp.ones(2)
    with strategy.scope():
        w = rx.Variable(source)

    @rx.function
    def step():
        strategy.run(lambda: w.assign_add(jnp.ones(2)))

    for _ in range(3):
        step()
    np.testing.assert_array_equal(source, [1, 1])
    np.testing.assert_array_equal(w, [4, 4])


def test_it_survives_the_donation_of_its_source(strategy):
    source = strategy.replica_mesh.place_mirrored(jnp.ones(2))
    with strategy.scope():
        w = rx.Variable(source)
        v = rx.Variable(jnp.zeros(2))
    v.assign(source)
    jax.jit(lambda x: x + 1, donate_argnums=0)(source)
    assert source.is_deleted()
    np.testing.assert_array_equal(w, [1, 1])
    np.testing.assert_array_equal(v, [1, 1])


def test_what_was_read_survives_later_steps(runner, strategy, w):
    step = runner(lambda: strategy.run(lambda: w.assign_add(jnp.ones(2))))
    step()
    seen = [w.value, w.read_value(), *w.values]
    for _ in range(3):
        step()
    for array in seen:
        np.testing.assert_array_equal(array, [2, 3])
    np.testing.assert_array_equal(w, [5, 6])


# --- use as an array ---------------------------------------------------------------------------


def test_operators(w):
    x = np.array([1.0, 2.0], np.float32)
    for result, expected in [
        (w + 1, x + 1),
        (1 - w, 1 - x),
        (w * w, x * x),
        (2 / w, 2 / x),
        (w // 2, x // 2),
        (w % 2, x % 2),
        (2**w, 2**x),
        (w @ w, x @ x),
        (-w, -x),
        (abs(w), abs(x)),
        (w > 1, x > 1),
        (w <= 1, x <= 1),
        (w[1], x[1]),
        (w[::-1], x[::-1]),
        (np.ones(2) * w, x),
        (np.float32(3) * w, 3 * x),
        (jnp.ones(2) + w, x + 1),
        (np.sum(w), 3),
        (jnp.asarray(w), x),
        (np.asarray(w), x),
    ]:
        np.testing.assert_allclose(result, expected)


def test_conversions():
    scalar = rx.Variable(2.5)
    assert float(scalar) == 2.5
    assert int(scalar) == 2
    assert complex(scalar) == 2.5
    assert f"{scalar:.2f}" == "2.50"
    assert [0, 1, 2][rx.Variable(1)] == 1
    assert bool(rx.Variable(1))
    assert not rx.Variable(False)


def test_iteration_ends(w):
    assert len(w) == 2
    assert [float(x) for x in w] == [1.0, 2.0]


def test_a_numpy_array_of_it_is_a_copy(w):
    array = np.asarray(w)
    array[:] = 9
    np.testing.assert_array_equal(w, [1, 2])


def test_it_is_compared_by_identity(w):
    assert w == w  # noqa: PLR0124 - that is what is asked
    assert w != rx.Variable([1.0, 2.0])
    assert {w: 1}[w] == 1


# --- copies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy])
def test_a_copy_is_a_new_variable_of_the_same_strategy(w, strategy, duplicate):
    twin = duplicate(w)
    assert twin is not w
    assert type(twin) is type(w)
    assert (twin.strategy, twin.name, twin.aggregation) == (strategy, "w", w.aggregation)

    @rx.function
    def step():
        strategy.run(lambda: (w.assign_add(jnp.ones(2)), twin.assign_sub(jnp.ones(2))))

    step()
    step()
    np.testing.assert_array_equal(w, [3, 4])
    np.testing.assert_array_equal(twin, [-1, 0])


def test_a_deep_copy_of_a_model_keeps_shared_variables_shared(w):
    model = copy.deepcopy({"a": w, "b": w})
    assert model["a"] is model["b"]
    assert model["a"] is not w


def test_a_variable_outside_of_a_scope_can_be_copied():
    w = rx.Variable(1.0)
    twin = copy.deepcopy(w)
    twin.assign(2.0)
    assert (float(w), float(twin), twin.strategy) == (1.0, 2.0, None)


def test_it_cannot_be_pickled(w):
    with pytest.raises(rx.errors.UnimplementedError, match=r"`w` cannot be pickled"):
        pickle.dumps(w)
