"""`strategy.extended`: what libraries use of a strategy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

ONE_OF_EACH = rx.PerReplica([1.0, 20.0])


@pytest.fixture
def make(strategy):
    def create(value=0.0, name="v", **options):
        with strategy.scope():
            return rx.Variable(value, name=name, **options)

    return create


def copies(variable):
    return [np.asarray(value).tolist() for value in variable.values]


# --- facts ---------------------------------------------------------------------------------------


def test_parameter_devices_are_those_of_the_replicas(strategy):
    devices = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))
    assert strategy.extended.worker_devices == devices
    assert strategy.extended.parameter_devices == devices


def test_variable_created_in_scope(strategy, other, make):
    v = make()
    with other.scope():
        elsewhere = rx.Variable(0.0)
    on_read = make(synchronization="on_read", aggregation="sum")
    created = strategy.extended.variable_created_in_scope
    assert created(v)
    assert created(on_read)
    for value in [elsewhere, rx.Variable(0.0), 1.0, jnp.ones(2), None, rx.PerReplica([v, v])]:
        assert not created(value)


@pytest.mark.parametrize("value", [1.0, None, ONE_OF_EACH])
def test_the_container_of_what_is_no_copy_is_itself(strategy, value):
    assert strategy.extended.value_container(value) is value


def test_the_container_of_a_variable(run, strategy, make):
    v = make()
    assert strategy.extended.value_container(v) is v

    def add(v):
        strategy.extended.value_container(v).assign_add(1.0)

    strategy.extended.update(v, add)
    assert copies(v) == [1.0, 1.0]


# --- colocate_vars_with --------------------------------------------------------------------------


def test_colocate_vars_with(strategy, make):
    v = make()
    with strategy.scope(), strategy.extended.colocate_vars_with(v):
        w = rx.Variable(1.0)
    assert [x.devices() for x in w.values] == [x.devices() for x in v.values]


def test_colocate_vars_with_outside_of_the_scope_is_refused(strategy, make):
    v = make()
    with (
        pytest.raises(rx.errors.ContextError, match=r"outside of its scope(.|\n)*strategy\.scope"),
        strategy.extended.colocate_vars_with(v),
    ):
        pass


@pytest.mark.parametrize("which", ["plain", "other", "array"])
def test_colocate_vars_with_something_else_is_refused(strategy, other, which):
    with other.scope():
        elsewhere = rx.Variable(0.0, name="elsewhere")
    value = {"plain": rx.Variable(0.0), "other": elsewhere, "array": jnp.ones(2)}[which]
    with (
        strategy.scope(),
        pytest.raises(rx.errors.InvalidArgumentError, match=r"`colocate_vars_with` of Mirrored"),
        strategy.extended.colocate_vars_with(value),
    ):
        pass


# --- update --------------------------------------------------------------------------------------

PLACES = ["eager", "scope", "function", "eager replica", "replica", "eager merge", "merge"]


@pytest.fixture(params=PLACES)
def update(request, strategy):
    """`update(v, fn, args, kwargs, group)` in one of the contexts where it can be called."""
    place = request.param

    def call(v, fn, args=(), kwargs=None, *, group=True):
        def act(*args):
            return strategy.extended.update(v, fn, args, kwargs, group=group)

        def merged(*args):
            return rx.get_replica_context().merge_call(lambda _, *args: act(*args), args=args)

        if place == "scope":
            with strategy.scope():
                return act(*args)
        step = {
            "eager": act,
            "function": rx.function(act),
            "eager replica": lambda *args: strategy.run(act, args=args),
            "replica": rx.function(lambda *args: strategy.run(act, args=args)),
            "eager merge": lambda *args: strategy.run(merged, args=args),
            "merge": rx.function(lambda *args: strategy.run(merged, args=args)),
        }[place]
        return step(*args)

    call.place = place
    return call


def test_update_acts_on_each_copy(update, make):
    v = make([1.0, 2.0])

    def fn(v, x, scale=1.0):
        v.assign(v * scale + x)

    update(v, fn, (jnp.ones(2),), {"scale": 10.0})
    assert copies(v) == [[11.0, 21.0]] * 2


def test_update_sees_one_copy_at_a_time(update, make):
    v = make(synchronization="on_read", aggregation="sum")
    v.assign(ONE_OF_EACH)
    update(v, lambda v: v.assign(v * 10))
    assert copies(v) == [10.0, 200.0]


def test_update_unpacks_per_replica_arguments(update, make):
    v = make(synchronization="on_read", aggregation="none")
    update(v, lambda v, x: v.assign_add(x), (ONE_OF_EACH,))
    assert copies(v) == [1.0, 20.0]


@pytest.mark.parametrize("aggregation", ["none", "sum", "mean"])
def test_update_writes_copies_as_they_are(update, make, aggregation):
    """The copies of a mirrored variable must be equal; nothing is combined inside."""
    v = make(1.0, aggregation=aggregation)
    update(v, lambda v, x: v.assign_add(x), (2.0,))
    assert copies(v) == [3.0, 3.0]


@pytest.mark.parametrize("aggregation", ["none", "mean"])
def test_update_that_makes_copies_differ_is_refused(update, make, aggregation):
    v = make(1.0, aggregation=aggregation)
    with pytest.raises(rx.errors.VaryingWriteError, match="`v`"):
        update(v, lambda v, x: v.assign(x), (ONE_OF_EACH,))
    assert copies(v) == [1.0, 1.0]


def test_update_returns_what_the_function_returns(update, make, strategy):
    v = make(1.0)
    result = update(v, lambda v: (v.assign_add(1.0), v.value)[1])
    assert [float(x) for x in strategy.local_results(result)] == [2.0, 2.0]
    if "replica" not in update.place and "merge" not in update.place:
        assert isinstance(result, jax.Array)


def test_update_returns_a_tuple_without_group(update, make, strategy):
    v = make(synchronization="on_read", aggregation="sum")
    v.assign(ONE_OF_EACH)
    result = update(v, lambda v: v * 2, group=False)
    assert isinstance(result, tuple)
    assert [float(x) for x in strategy.local_results(result)[0]] == [2.0, 40.0]


def test_update_groups_copies_that_differ(update, make, strategy):
    v = make(synchronization="on_read", aggregation="sum")
    v.assign(ONE_OF_EACH)
    result = update(v, lambda v: v * 2)
    assert [float(x) for x in strategy.local_results(result)] == [2.0, 40.0]


def test_update_of_several_variables_inside(update, make):
    v, slot = make(1.0), make(0.0, name="slot")

    def fn(v, gradient):
        slot.assign(0.5 * slot + gradient)
        v.assign_sub(slot)

    for _ in range(2):
        update(v, fn, (jnp.float32(2),))
    assert copies(slot) == [3.0, 3.0]
    assert copies(v) == [-4.0, -4.0]


def test_update_inside_update_is_refused(update, make, strategy):
    v, w = make(1.0), make(1.0, name="w")
    nested = strategy.extended.update
    with pytest.raises(rx.errors.ContextError, match=r"`update` of `w`.*inside another `update`"):
        update(v, lambda v: nested(w, lambda w: w.assign_add(1.0)))
    assert (copies(v), copies(w)) == ([1.0, 1.0], [1.0, 1.0])


def test_an_error_inside_update_is_raised_as_it_is(update, make):
    v = make(1.0)

    def fn(v):
        v.assign_add(1.0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        update(v, fn)
    assert copies(v) == [1.0, 1.0]


def test_the_replicas_gradients_meet_in_update(run, make, strategy):
    """The pattern of optimizers in tf.distribute: reduce in a merge call, then update."""
    v = make(1.0)

    def merge_fn(strategy, gradient):
        total = strategy.extended.reduce_to("sum", gradient, v)
        strategy.extended.update(v, lambda v, g: v.assign_sub(g), args=(total,))

    run(lambda g: rx.get_replica_context().merge_call(merge_fn, args=(g,)), ONE_OF_EACH)
    assert copies(v) == [-20.0, -20.0]


def of_another(other):
    with other.scope():
        return rx.Variable(0.0, name="elsewhere")


BAD_TARGETS = {
    "plain": lambda other: rx.Variable(0.0, name="plain"),
    "other": of_another,
    "array": lambda other: jnp.ones(2),
    "none": lambda other: None,
}


@pytest.mark.parametrize("which", BAD_TARGETS)
def test_update_of_something_else_is_refused(runner, strategy, other, which):
    target = BAD_TARGETS[which](other)
    step = runner(lambda: strategy.extended.update(target, lambda v: None))
    with pytest.raises(rx.errors.InvalidArgumentError) as caught:
        step()
    message = str(caught.value)
    assert message.startswith("`update` of MirroredStrategy#")
    assert "What to do" in message
    if which in {"plain", "other"}:
        assert f"`{target.name}`" in message


@pytest.mark.parametrize("bad", [{"fn": 3}, {"args": 3}, {"args": "text"}])
def test_bad_arguments_of_update_are_refused(strategy, make, bad):
    arguments = {"fn": lambda v: None, "args": (), **bad}
    with pytest.raises(rx.errors.ArgumentTypeError, match="What to do"):
        strategy.extended.update(make(), **arguments)


# --- reduce_to, batch_reduce_to, broadcast_to ----------------------------------------------------


def test_reduce_to_a_variable(runner, strategy, make):
    v = make()
    step = runner(lambda x: strategy.extended.reduce_to("sum", x, v))
    result = step(ONE_OF_EACH)
    assert float(result) == 21.0
    assert result.devices() == set(strategy.replica_mesh.devices)


@pytest.mark.parametrize(
    ("op", "expected"), [("mean", 10.5), (rx.ReduceOp.SUM, 21.0), (rx.ReduceOp.MAX, 20.0)]
)
def test_reduce_to_ops(strategy, make, op, expected):
    assert float(strategy.extended.reduce_to(op, ONE_OF_EACH, make())) == expected


@pytest.mark.parametrize(
    "device", ["cpu:3", "/device:CPU:3", rx.DeviceSpec(device_type="CPU", device_index=3)]
)
def test_reduce_to_a_device(strategy, device):
    result = strategy.extended.reduce_to("sum", {"x": ONE_OF_EACH}, device)["x"]
    assert float(result) == 21.0
    assert result.devices() == {jax.devices()[3]}


def test_in_a_compiled_step_the_result_stays_on_the_replicas_devices(strategy):
    step = rx.function(lambda x: strategy.extended.reduce_to("sum", x, "cpu:3"))
    result = step(ONE_OF_EACH)
    assert float(result) == 21.0
    assert result.devices() == set(strategy.replica_mesh.devices)


def test_reduce_to_where_a_value_lies(strategy):
    there = jax.device_put(jnp.zeros(()), jax.devices()[3])
    assert strategy.extended.reduce_to("sum", ONE_OF_EACH, there).devices() == {jax.devices()[3]}
    assert strategy.extended.reduce_to("sum", ONE_OF_EACH, ONE_OF_EACH).devices() == set(
        strategy.replica_mesh.devices
    )


def test_the_mean_of_a_mirrored_value_is_itself_and_its_sum_is_refused(runner, strategy, make):
    v = make(3.0)
    mean = runner(lambda: strategy.extended.reduce_to("mean", v, v))
    assert float(mean()) == 3.0
    total = runner(lambda: strategy.extended.reduce_to("sum", v, v))
    with pytest.raises(rx.errors.InvalidArgumentError, match="What to do"):
        total()


def test_batch_reduce_to(runner, strategy, make):
    v = make()
    step = runner(lambda x: strategy.extended.batch_reduce_to("mean", [(x, v), ((x, x), v)]))
    first, second = step(ONE_OF_EACH)
    assert float(first) == 10.5
    assert [float(x) for x in second] == [10.5, 10.5]


def test_batch_reduce_to_of_integers_and_floats(strategy, make):
    """tf.distribute refuses the mix."""
    pairs = [(rx.PerReplica([1, 2]), make()), (ONE_OF_EACH, "cpu:0")]
    first, second = strategy.extended.batch_reduce_to("sum", pairs)
    assert (int(first), first.dtype) == (3, jnp.int32)
    assert float(second) == 21.0
    assert strategy.extended.batch_reduce_to("sum", []) == []


@pytest.mark.parametrize("pairs", [None, 3, [1, 2], [(ONE_OF_EACH,)], {"a": 1}])
def test_batch_reduce_to_of_no_pairs_is_refused(strategy, pairs):
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"list of pairs"):
        strategy.extended.batch_reduce_to("sum", pairs)


def test_broadcast_to(runner, strategy, make):
    v = make()
    result = runner(lambda x: strategy.extended.broadcast_to(x, v))(jnp.arange(3))
    np.testing.assert_array_equal(result, [0, 1, 2])
    assert result.devices() == set(strategy.replica_mesh.devices)


def test_broadcast_to_a_device(strategy, make):
    result = strategy.extended.broadcast_to({"a": 1.0, "v": make(2.0)}, "cpu:3")
    assert {key: float(value) for key, value in result.items()} == {"a": 1.0, "v": 2.0}
    assert {d for value in result.values() for d in value.devices()} == {jax.devices()[3]}


def test_broadcast_of_a_per_replica_value_is_refused(strategy, make):
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"one component a replica"):
        strategy.extended.broadcast_to(ONE_OF_EACH, make())


BAD_DESTINATIONS = [None, 3, [], ["cpu:0", "cpu:1"], {"a": 1}, np.ones(2)]


@pytest.mark.parametrize("destinations", BAD_DESTINATIONS)
def test_what_names_no_devices_is_refused(strategy, destinations):
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"`reduce_to`.*names no devices"):
        strategy.extended.reduce_to("sum", ONE_OF_EACH, destinations)
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"`broadcast_to`.*names no devices"):
        strategy.extended.broadcast_to(1.0, destinations)


def test_an_unknown_device_is_refused(strategy):
    with pytest.raises(rx.errors.UnknownDeviceError, match=r"cpu:99"):
        strategy.extended.reduce_to("sum", ONE_OF_EACH, "cpu:99")


@pytest.mark.parametrize("call", ["reduce_to", "batch_reduce_to", "broadcast_to"])
def test_in_a_replica_they_are_refused(run, strategy, make, call):
    v = make()
    arguments = {
        "reduce_to": ("sum", ONE_OF_EACH, v),
        "batch_reduce_to": ("sum", [(ONE_OF_EACH, v)]),
        "broadcast_to": (1.0, v),
    }[call]
    with pytest.raises(rx.errors.ContextError, match="in replica context"):
        run(lambda: getattr(strategy.extended, call)(*arguments))


def test_in_a_merge_call(run, strategy, make):
    v = make()

    def merge_fn(strategy, x):
        total = strategy.extended.reduce_to("sum", x, v)
        (mean,) = strategy.extended.batch_reduce_to("mean", [(x, v)])
        return total, mean, strategy.extended.broadcast_to(total, v)

    def replica_fn(x):
        return rx.get_replica_context().merge_call(merge_fn, args=(x,))

    assert [float(x) for x in run(replica_fn, ONE_OF_EACH)] == [21.0, 10.5, 21.0]
