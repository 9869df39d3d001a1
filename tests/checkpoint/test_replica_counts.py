"""Variables of every kind go from any number of replicas to any other, bit for bit."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import Checkpoint

KINDS = {
    "mirrored": {},
    "sum": {"synchronization": "on_read", "aggregation": "sum"},
    "mean": {"synchronization": "on_read", "aggregation": "mean"},
    "first": {"synchronization": "on_read", "aggregation": "only_first_replica"},
}
# Neither the integers nor the floats divide by 2, 3 or 4 without remainder.
VALUES = {
    "int": np.array([7, -10, 2**31 - 1, -(2**31), 0, 1], np.int32),
    "float": np.array([0.1, -1.2e-38, 3.4e38, 1 / 3, 0.0, 7], np.float32),
}
NUMBERS = [0, 1, 2, 3, 4]  # of replicas; 0: outside of every scope
NAMES = [(k, v) for k in KINDS for v in VALUES if (k, v) != ("mean", "int")]


def scope(strategies, replicas):
    return strategies[replicas].scope() if replicas else contextlib.nullcontext()


def variables(strategies, replicas):
    with scope(strategies, replicas):
        return {
            f"{kind}-{value}": rx.Variable(np.zeros_like(VALUES[value]), **KINDS[kind])
            for kind, value in NAMES
        }


@pytest.mark.parametrize(
    "source", [*(pytest.param(n, marks=pytest.mark.slow) for n in range(4)), 4]
)
def test_any_number_to_any_other(path, strategies, source):
    saved = variables(strategies, source)
    for kind, value in NAMES:
        saved[f"{kind}-{value}"].assign(VALUES[value])
    before = {name: np.asarray(variable) for name, variable in saved.items()}
    Checkpoint(v=saved).save(path)

    for target in NUMBERS:
        restored = variables(strategies, target)
        Checkpoint(v=restored).restore(path).assert_consumed()
        for name, variable in restored.items():
            assert np.asarray(variable).tobytes() == before[name].tobytes(), (name, target)
            if name.startswith(("mean", "first", "mirrored")) and target:
                copies = strategies[target].local_results(variable)
                assert len(copies) == target
                assert all(np.asarray(c).tobytes() == before[name].tobytes() for c in copies)


def test_what_replicas_counted_is_shared_out(path, strategies, runner):
    four, three = strategies[4], strategies[3]

    def counter():
        return rx.Variable(0, synchronization="on_read", aggregation="sum")

    with four.scope():
        count = counter()
    step = runner(lambda x: four.run(count.assign_add, args=(x,)))
    step(rx.PerReplica([1, 2, 3, 5]))
    Checkpoint(count=count).save(path)
    with three.scope():
        restored = counter()
    Checkpoint(count=restored).restore(path).assert_consumed()

    assert int(restored) == 11
    assert [int(copy) for copy in three.local_results(restored)] == [4, 4, 3]
    step = runner(lambda x: three.run(restored.assign_add, args=(x,)))
    step(rx.PerReplica([10, 20, 30]))
    assert int(restored) == 71


def test_plain_arrays_to_variables_and_back(path, strategies):
    arrays = {name: value.copy() for name, value in VALUES.items()}
    Checkpoint(v=arrays).save(path)
    with strategies[3].scope():
        variables = {name: rx.Variable(np.zeros_like(value)) for name, value in VALUES.items()}
    Checkpoint(v=variables).restore(path).assert_consumed()
    Checkpoint(v=variables).save(path)
    arrays = {name: jnp.zeros_like(value) for name, value in VALUES.items()}
    Checkpoint(v=arrays).restore(path).assert_consumed()

    for name, value in VALUES.items():
        assert np.asarray(arrays[name]).tobytes() == value.tobytes()


def without_rule(strategy):
    with strategy.scope():
        return rx.Variable(jnp.zeros(2), synchronization="on_read", name="own")


def test_copies_without_aggregation_return_to_their_replicas(path, strategies):
    own = without_rule(strategies[3])
    own.assign(rx.PerReplica([jnp.full(2, i + 0.1) for i in range(3)]))
    Checkpoint(own=own).save(path)
    restored = without_rule(strategies[3])
    Checkpoint(own=restored).restore(path).assert_consumed()

    expected = [np.asarray(copy).tobytes() for copy in own.values]
    assert [np.asarray(copy).tobytes() for copy in restored.values] == expected


@pytest.mark.parametrize("target", [1, 2, 4])
def test_copies_without_aggregation_go_to_no_other_number(path, strategies, target):
    Checkpoint(own=without_rule(strategies[3])).save(path)
    own = without_rule(strategies[target])

    with pytest.raises(rx.errors.InvalidArgumentError, match="3 copies of float32") as caught:
        Checkpoint(own=own).restore(path)
    assert (f"{target} copies of float32[2]" in str(caught.value)) == (target > 1)


def test_copies_do_not_go_to_a_variable_with_one_value(path, strategies):
    Checkpoint(own=without_rule(strategies[3])).save(path)
    with strategies[3].scope():
        mirrored = rx.Variable(jnp.ones(2))

    with pytest.raises(rx.errors.InvalidArgumentError, match=r"own +3 copies of float32"):
        Checkpoint(own=mirrored).restore(path)
    assert mirrored.value.tolist() == [1, 1]


@pytest.mark.parametrize("make", [lambda s: jnp.full(2, 3.0), lambda s: without_rule(s[1])])
def test_one_value_goes_to_all_copies(path, strategies, make):
    value = make(strategies)
    Checkpoint(own=value).save(path)
    own = without_rule(strategies[2])
    Checkpoint(own=own).restore(path).assert_consumed()

    expected = np.asarray(value.values[0] if isinstance(value, rx.Variable) else value)
    assert [copy.tolist() for copy in own.values] == [expected.tolist()] * 2


def test_random_keys_of_each_replica(path, strategies):
    def make(seed):
        with strategies[2].scope():
            return rx.Variable(jax.random.key(seed), synchronization="on_read")

    keys = make(0)
    keys.assign(rx.PerReplica([jax.random.key(5), jax.random.key(6)]))
    Checkpoint(keys=keys).save(path)
    restored = make(1)
    Checkpoint(keys=restored).restore(path).assert_consumed()

    expected = [jax.random.key_data(key).tolist() for key in keys.values]
    assert [jax.random.key_data(key).tolist() for key in restored.values] == expected


def test_variables_on_a_central_device(path, strategies):
    central = rx.CentralStorageStrategy(["cpu:0", "cpu:1"], "cpu:2")
    with central.scope():
        v = rx.Variable(VALUES["float"])
    with strategies[3].scope():
        w = rx.Variable(np.zeros(6, np.float32))
    Checkpoint(v=v).save(path)
    Checkpoint(v=w).restore(path).assert_consumed()
    v.assign(np.zeros(6, np.float32))
    Checkpoint(v=w).save(path)
    Checkpoint(v=v).restore(path).assert_consumed()

    assert np.asarray(v).tobytes() == VALUES["float"].tobytes()
    assert v.value.devices() == {jax.devices()[2]}


def test_saving_and_restoring_inside_a_scope(path, strategies):
    with strategies[2].scope():
        v = rx.Variable(1.5)
        Checkpoint(v=v).save(path)
    with strategies[3].scope():
        w = rx.Variable(0.0)
        Checkpoint(v=w).restore(path).assert_consumed()
    with strategies[2].scope():  # the scope of another strategy than the variable's
        v.assign(0.0)
        Checkpoint(v=w).restore(path)

    assert float(w) == 1.5
