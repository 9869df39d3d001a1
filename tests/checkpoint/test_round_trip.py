"""Every kind of object comes back as it was, at the place where it was."""

from __future__ import annotations

import collections
import dataclasses
import math
import types
from typing import NamedTuple

import hypothesis
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

import replicax as rx
from replicax import errors
from replicax.checkpoint import Checkpoint


class Point(NamedTuple):
    x: object
    y: object


@dataclasses.dataclass
class Mutable:
    w: object
    name: str = "part"


@dataclasses.dataclass(frozen=True)
class Frozen:
    w: object
    steps: int = 0


class Slotted:
    __slots__ = ("unset", "w")

    def __init__(self, w):
        self.w = w


@jax.tree_util.register_pytree_with_keys_class
class Node:
    """A pytree that JAX alone knows how to take apart; what is inside is made anew each time."""

    def __init__(self, a, b):
        self.a, self.b = a, b

    def tree_flatten_with_keys(self):
        inside = {"a": self.a, "b": [self.b]}
        return [(jax.tree_util.GetAttrKey("inside"), inside)], None

    @classmethod
    def tree_unflatten(cls, _, parts):
        (inside,) = parts
        return cls(inside["a"], inside["b"][0])


def saved_and_restored(path, saved, target):
    """What `target` is after it was restored from a checkpoint of `saved`."""
    Checkpoint(x=saved).save(path)
    checkpoint = Checkpoint(x=target)
    checkpoint.restore(path).assert_consumed()
    return checkpoint.x


def same(a, b):
    return type(a) is type(b) and a.dtype == b.dtype and np.asarray(a).tobytes() == b.tobytes()


@pytest.mark.parametrize(
    "dtype",
    [
        *(np.bool_, np.int8, np.uint64, np.float16, np.float32, np.float64, np.complex64),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
    ],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_numpy_arrays_of_every_dtype(path, dtype, shape):
    value = np.ones(shape, dtype)

    assert same(saved_and_restored(path, value, np.zeros(shape, dtype)), value)


@hypothesis.given(
    np_st.arrays(
        st.sampled_from([np.float32, np.int32, np.float64, np.uint8]),
        np_st.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    )
)
@hypothesis.settings(
    max_examples=10, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_any_bits_come_back(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("any") / "checkpoint"

    assert same(saved_and_restored(path, value, np.zeros_like(value)), value)


@pytest.mark.parametrize(
    "number", [True, False, 0, -7, 2**200, 0.1, -0.0, math.inf, math.nan, 1 - 2j, complex("nan")]
)
def test_python_numbers_stay_what_they_are(path, number):
    restored = saved_and_restored(path, number, type(number)())

    assert type(restored) is type(number)
    assert repr(restored) == repr(number)


def test_numpy_scalars_stay_scalars(path):
    restored = saved_and_restored(path, np.float32(0.1), np.float32(0))

    assert isinstance(restored, np.float32)
    assert restored == np.float32(0.1)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("shape", [(), (3,), (0,)])
def test_random_keys(path, implementation, shape):
    keys = jax.random.split(jax.random.key(5, impl=implementation), (*shape, 2))[..., 0]
    others = jax.random.split(jax.random.key(6, impl=implementation), (*shape, 2))[..., 0]
    restored = saved_and_restored(path, keys, others)

    assert restored.dtype == keys.dtype
    assert (jax.random.key_data(restored) == jax.random.key_data(keys)).all()
    assert restored.shape == keys.shape


def test_a_variable_with_a_random_key(path, strategies):
    with strategies[2].scope():
        key = rx.Variable(jax.random.key(1))
    Checkpoint(key=key).save(path)
    key.assign(jax.random.key(2))
    Checkpoint(key=key).restore(path).assert_consumed()

    assert (jax.random.key_data(key.value) == jax.random.key_data(jax.random.key(1))).all()


def test_containers_that_can_change_are_changed_in_place(path, part):
    def make(fill):
        return {
            "dict": {"a": np.full(2, fill), 3: fill},
            "list": [np.full(2, fill), (fill, [fill])],
            "deque": collections.deque([fill]),
            "object": part(w=np.full(2, fill), _private=fill, inner=part(n=fill)),
            "dataclass": Mutable(np.full(2, fill)),
            "slots": Slotted(fill),
            "namespace": types.SimpleNamespace(w=fill),
        }

    target = make(0)
    pieces = dict(target)
    restored = saved_and_restored(path, make(7), target)

    assert restored is target
    assert all(restored[name] is piece for name, piece in pieces.items())
    assert target["dict"]["a"].tolist() == [7, 7]
    assert target["dict"][3] == 7
    assert target["list"][0].tolist() == [7, 7]
    assert target["list"][1] == (7, [7])
    assert target["deque"][0] == 7
    assert target["object"].w.tolist() == [7, 7]
    assert (target["object"]._private, target["object"].inner.n) == (7, 7)
    assert target["dataclass"].w.tolist() == [7, 7]
    assert target["dataclass"].name == "part"
    assert (target["slots"].w, target["namespace"].w) == (7, 7)


def test_containers_that_cannot_change_are_made_anew(path):
    inner = {"b": 0}
    before = (0, Point(0, inner), Frozen(np.zeros(2)), Node(0, 0))
    after = saved_and_restored(
        path, (1, Point(2, {"b": 3}), Frozen(np.ones(2), 4), Node(5, 6)), before
    )

    assert after[:2] == (1, Point(2, {"b": 3}))
    assert after[1].y is inner  # it can change, so it was changed
    assert (after[2].w.tolist(), after[2].steps) == ([1, 1], 4)
    assert (after[3].a, after[3].b) == (5, 6)
    assert (before[0], before[2].steps, before[3].a) == (0, 0, 0)


def test_sparse_rows(path):
    def make(fill):
        return rx.IndexedSlices(jnp.full((2, 3), fill), jnp.array([0, int(fill)]))

    restored = saved_and_restored(path, make(4.0), make(0.0))

    assert isinstance(restored, rx.IndexedSlices)
    assert restored.values.tolist() == [[4.0] * 3] * 2
    assert restored.indices.tolist() == [0, 4]


def test_a_tuple_in_an_attribute_is_replaced_there(path, part):
    target = part(state=(np.zeros(1), part(n=0)))
    inner = target.state[1]
    saved_and_restored(path, part(state=(np.ones(1), part(n=9))), target)

    assert target.state[0].tolist() == [1]
    assert target.state[1] is inner
    assert inner.n == 9


def test_an_optimizer_of_optax_goes_on_as_if_nothing_had_been(path):
    optimizer = optax.chain(optax.clip(1.0), optax.adam(optax.linear_schedule(0.1, 0.0, 10)))
    weights = {"w": jnp.arange(3.0), "empty": jnp.zeros((0,))}
    gradient = jax.tree.map(jnp.ones_like, weights)

    def steps(weights, state, count):
        for _ in range(count):
            updates, state = optimizer.update(gradient, state, weights)
            weights = optax.apply_updates(weights, updates)
        return weights, state

    weights, state = steps(weights, optimizer.init(weights), 2)
    Checkpoint(weights=weights, state=state).save(path)
    fresh = jax.tree.map(jnp.zeros_like, weights)
    checkpoint = Checkpoint(weights=fresh, state=optimizer.init(fresh))
    checkpoint.restore(path).assert_consumed()

    expected = steps(weights, state, 2)
    found = steps(checkpoint.weights, checkpoint.state, 2)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    jax.tree.map(np.testing.assert_array_equal, expected, found)


def test_what_holds_no_state_is_left_alone(path, part, strategies):
    def rest():
        return {
            "activation": jnp.tanh,
            "bound": [].append,
            "class": Frozen,
            "config": "relu",
            "dtype": jnp.float32,
            "module": np,
            "names": np.array(["a", "b"]),
            "none": None,
            "numbers": {1, 2},
            "strategy": strategies[2],
            "function": rx.function(lambda: 0),
            "options": rx.CommunicationOptions(bytes_per_pack=32),
            "mesh": strategies[2].replica_mesh.mesh,
        }

    target = part(w=0, **rest())
    before = dict(vars(target))
    Checkpoint(model=part(w=1, **rest())).save(path)
    status = Checkpoint(model=target).restore(path)

    assert status.pending == ()
    assert {name: vars(target)[name] for name in before} == before | {"w": 1}


def test_cycles_and_shared_objects(path, part):
    def make(value):
        shared = part(w=rx.Variable(value))
        model = part(shared=shared, layers=[shared, part(n=value)])
        model.layers[1].owner = model
        model.again = shared.w
        return model

    target = make(0)
    Checkpoint(model=make(3)).save(path)
    Checkpoint(model=target).restore(path).assert_consumed()

    assert int(target.shared.w) == 3
    assert target.layers[1].n == 3


def test_a_shared_variable_restores_where_it_is_shared_no_more(path, part):
    shared = rx.Variable(4)
    Checkpoint(model=part(a=shared, b=shared)).save(path)
    target = part(a=rx.Variable(0), b=rx.Variable(0))
    Checkpoint(model=target).restore(path).assert_consumed()

    assert (int(target.a), int(target.b)) == (4, 4)


def test_the_order_of_attributes_does_not_matter(path, part):
    w = rx.Variable(1)
    Checkpoint(model=part(first=part(w=w), second=part(w=w, n=5))).save(path)
    other = rx.Variable(0)
    target = part(second=part(n=0, w=other), first=part(w=other))
    Checkpoint(model=target).restore(path).assert_consumed()

    assert (int(other), target.second.n) == (1, 5)


def test_a_callable_model_is_looked_through(path):
    class Model:
        def __init__(self, fill):
            self.w = rx.Variable(fill)

        def __call__(self, x):
            return self.w * x

    target = Model(0.0)
    Checkpoint(model=Model(2.0)).save(path)
    Checkpoint(model=target).restore(path).assert_consumed()

    assert float(target(3.0)) == 6.0


def test_arrays_stay_where_those_were_that_they_replace(path, strategies):
    mesh = strategies[2].replica_mesh
    mirrored = jax.device_put(jnp.zeros(2), mesh.mirrored)
    stacked = jax.device_put(jnp.zeros(2), mesh.stacked)
    on_one = jax.device_put(jnp.zeros(2), jax.devices()[3])
    target = {"mirrored": mirrored, "stacked": stacked, "one": on_one, "free": jnp.zeros(2)}
    before = {name: (array.sharding, array.committed) for name, array in target.items()}
    saved_and_restored(path, {name: np.arange(2, dtype=np.float32) for name in target}, target)

    assert {n: (array.sharding, array.committed) for n, array in target.items()} == before
    assert all(array.tolist() == [0.0, 1.0] for array in target.values())


def test_a_restored_numpy_array_shares_no_memory(path):
    value = {"a": np.zeros(2)}
    checkpoint = Checkpoint(x=value)
    checkpoint.save(path)
    kept = value["a"]
    checkpoint.restore(path)
    value["a"] += 1

    assert kept.tolist() == [0, 0]


def test_objects_are_attributes_of_the_checkpoint():
    checkpoint = Checkpoint(epoch=3)

    assert (checkpoint.epoch, checkpoint.objects) == (3, {"epoch": 3})
    assert not hasattr(checkpoint, "step")
    with pytest.raises(AttributeError, match="no object `step`"):
        _ = checkpoint.step


def test_a_checkpoint_can_be_saved_again_and_again(path):
    for number in range(3):
        Checkpoint(x=number).save(path)
        checkpoint = Checkpoint(x=-1)
        checkpoint.restore(path)

        assert checkpoint.x == number
        assert len(list(path.iterdir())) == 1


def test_folders_above_are_made_and_relative_paths_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Checkpoint(x=1).save("deep/down/here")

    assert saved_and_restored(tmp_path / "deep" / "down" / "here", 2, 0) == 2


def test_as_many_commits_are_kept_as_asked_for(path):
    assert rx.checkpoint.commits(path) == []
    for number in range(4):
        Checkpoint(x=number).save(path, keep=3)

    assert rx.checkpoint.commits(path) == [2, 3, 4]
    checkpoint = Checkpoint(x=-1)
    checkpoint.restore(path, commit=2)
    assert checkpoint.x == 1
    checkpoint.restore(path)
    assert checkpoint.x == 3
    with pytest.raises(errors.NotFoundError, match=r"no commit 1 at .* but \[2, 3, 4\]"):
        checkpoint.restore(path, commit=1)
    Checkpoint(x=9).save(path)
    assert rx.checkpoint.commits(path) == [5]


@pytest.mark.parametrize("keep", [0, True, 1.5])
def test_a_checkpoint_keeps_at_least_itself(path, keep):
    with pytest.raises(errors.InvalidArgumentError, match="keep"):
        Checkpoint(x=1).save(path, keep=keep)
    assert not path.exists()
