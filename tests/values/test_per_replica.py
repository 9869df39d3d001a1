from __future__ import annotations

import copy
import math
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


@pytest.fixture(params=["components", "stacked"])
def value(request, strategy):
    """A per-replica value as the user makes it, and as a compiled step returns it."""
    if request.param == "components":
        return rx.PerReplica([1.0, 2.0])
    return rx.function(
        lambda: strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group + 1.0)
    )()


def test_components(value):
    assert [float(x) for x in value.values] == [1.0, 2.0]
    assert value.num_components == 2
    assert isinstance(value, rx.DistributedValues)


AS_A_NUMBER = {
    "float": float,
    "int": int,
    "bool": bool,
    "complex": complex,
    "round": round,
    "abs": abs,
    "len": len,
    "iter": list,
    "index": lambda x: [0, 1, 2][x],
    "item": lambda x: x[0],
    "format": lambda x: f"{x:.3f}",
    "plus": lambda x: x + 1,
    "plus on the right": lambda x: 1 + x,
    "minus": lambda x: x - 1,
    "minus on the right": lambda x: 1 - x,
    "times": lambda x: 2 * x,
    "divide": lambda x: x / 2,
    "floor divide": lambda x: x // 2,
    "modulo": lambda x: x % 2,
    "power": lambda x: x**2,
    "power on the right": lambda x: 2**x,
    "negative": operator.neg,
    "positive": operator.pos,
    "matmul": lambda x: x @ jnp.ones(2),
    "less": lambda x: x < 1,
    "greater or equal": lambda x: x >= 1,
    "equal": lambda x: x == 1.0,
    "not equal": lambda x: x != 1.0,
    "equal to an array": lambda x: x == jnp.ones(2),
    "max": lambda x: max(x, 1.0),
    "sum of a list": lambda x: sum([x, x]),
    "np.asarray": np.asarray,
    "np.array of a list": lambda x: np.array([x, x]),
    "np.mean": np.mean,
    "np.sin": np.sin,
    "np.isnan": np.isnan,
    "numpy array on the left": lambda x: np.ones(2) * x,
    "numpy scalar on the left": lambda x: np.float32(2) * x,
    "numpy array equals": lambda x: np.ones(2) == x,
    "jnp.asarray": jnp.asarray,
    "jnp.array": jnp.array,
    "jnp.sum": jnp.sum,
    "jnp.sin": jnp.sin,
    "jax array on the left": lambda x: jnp.ones(2) * x,
    "math": math.sqrt,
}


@pytest.mark.parametrize("use", AS_A_NUMBER)
def test_use_as_a_number_outside_is_refused(value, use):
    with pytest.raises(rx.errors.ArgumentTypeError, match="as one array or number") as caught:
        AS_A_NUMBER[use](value)
    assert "strategy.reduce(op, value, axis=None)" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_use_as_a_number_in_a_step_is_refused(strategy):
    @rx.function
    def step():
        return 2 * strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)

    with pytest.raises(rx.errors.ArgumentTypeError, match="as one array or number"):
        step()


def test_objects_are_compared_by_identity(value):
    assert value == value  # noqa: PLR0124 - that is what is asked
    assert value != rx.PerReplica([1.0, 2.0])
    assert value != "text"
    assert value is not None
    assert value in {value: 1}


def test_text(strategy):
    value = rx.PerReplica([jnp.ones((2, 3)), np.int32(4)])
    assert repr(value) == f"{value}" == "PerReplica(float32[2, 3], 4)"
    (batch,) = strategy.distribute_dataset([np.zeros((4, 3), np.float32)])
    assert repr(batch) == "PerReplica(2 x float32[2, 3])"


@pytest.mark.parametrize("values", [3, "text", {"a": 1}, jnp.ones(2)])
def test_what_is_no_list_of_components_is_refused(values):
    with pytest.raises(rx.errors.ArgumentTypeError, match="list or tuple of components"):
        rx.PerReplica(values)


def test_no_components_are_refused():
    with pytest.raises(rx.errors.InvalidArgumentError, match="no components"):
        rx.PerReplica([])


def test_it_is_a_tree(value):
    doubled = jax.tree.map(lambda x: 2 * x, value)
    assert [float(x) for x in doubled.values] == [2.0, 4.0]
    assert isinstance(jax.block_until_ready(value), rx.PerReplica)


def test_it_can_be_copied_and_pickled():
    value = rx.PerReplica([1.0, 2.0])
    assert copy.deepcopy(value).values == (1.0, 2.0)
    assert pickle.loads(pickle.dumps(value)).values == (1.0, 2.0)  # noqa: S301 - our own bytes


# --- mirrored values ---------------------------------------------------------------------------


def test_a_mirrored_value_is_a_number():
    value = rx.Mirrored(3.0)
    assert value + 1 == 4.0
    assert value.values == (3.0,)
    assert repr(value) == "Mirrored(3.0)"
    assert f"{value:.2f}" == "3.00"
    np.testing.assert_array_equal(np.asarray(rx.Mirrored(jnp.ones(2))), [1, 1])


def test_a_mirrored_value_from_equal_components():
    assert rx.Mirrored.from_values([2.0, 2.0]).value == 2.0
    nan = rx.Mirrored.from_values([np.float32(np.nan), np.float32(np.nan)])
    assert np.isnan(nan.value)


@pytest.mark.parametrize(
    "values",
    [[1.0, 2.0], [np.float32(0.0), np.float32(-0.0)], [np.int32(1), np.float32(1)], [1, True]],
)
def test_a_mirrored_value_from_components_that_differ_is_refused(values):
    with pytest.raises(rx.errors.ReplicaDivergenceError, match="components of a mirrored") as e:
        rx.Mirrored.from_values(values)
    assert "      1  " in str(e.value)


def test_a_mirrored_value_from_no_components_is_refused():
    with pytest.raises(rx.errors.InvalidArgumentError, match="at least one"):
        rx.Mirrored.from_values([])


def test_a_mirrored_argument_is_passed_as_its_array(run):
    seen = []
    run(lambda x: seen.append(type(x)) or x * 2, rx.Mirrored(jnp.ones(2)))
    assert not any(issubclass(kind, rx.DistributedValues) for kind in seen)
