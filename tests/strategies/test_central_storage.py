"""Variables on one device, computation on several."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

CPU = "/job:localhost/replica:0/task:0/device:CPU"
STEPS = 20


@functools.cache
def central(n, parameter_device=0):
    return rx.CentralStorageStrategy(
        [f"cpu:{i}" for i in range(n)], parameter_device=f"cpu:{parameter_device}"
    )


# --- construction --------------------------------------------------------------------------------


def test_devices_by_default():
    strategy = rx.CentralStorageStrategy()
    assert strategy.num_replicas_in_sync == len(jax.devices())
    assert strategy.extended.parameter_devices == (f"{CPU}:0",)


def test_the_only_compute_device_holds_the_variables():
    strategy = rx.CentralStorageStrategy(["cpu:3"])
    assert strategy.extended.worker_devices == strategy.extended.parameter_devices == (f"{CPU}:3",)


@pytest.mark.parametrize("device", ["cpu:5", rx.DeviceSpec.from_string("/device:CPU:5")])
def test_the_parameter_device_need_not_compute(device):
    strategy = rx.CentralStorageStrategy(["cpu:1", "cpu:2"], parameter_device=device)
    assert strategy.extended.worker_devices == (f"{CPU}:1", f"{CPU}:2")
    assert strategy.extended.parameter_devices == (f"{CPU}:5",)
    assert strategy.parameter_device == jax.devices()[5]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"compute_devices": []}, rx.errors.InvalidArgumentError),
        ({"compute_devices": ["cpu:0", "cpu:0"]}, rx.errors.InvalidArgumentError),
        ({"compute_devices": ["cpu:99"]}, rx.errors.UnknownDeviceError),
        ({"compute_devices": "cpu:0"}, rx.errors.ArgumentTypeError),
        ({"parameter_device": "cpu:99"}, rx.errors.UnknownDeviceError),
        ({"parameter_device": ["cpu:0"]}, rx.errors.ArgumentTypeError),
        ({"parameter_device": 3}, rx.errors.ArgumentTypeError),
    ],
)
def test_devices_that_are_none_are_refused(arguments, error):
    with pytest.raises(error, match="What to do"):
        rx.CentralStorageStrategy(**arguments)


# --- where variables lie -------------------------------------------------------------------------


@pytest.fixture(params=[1, 5])  # among the compute devices, and not
def strategy(request):
    return central(2, request.param)


def home(strategy):
    return {strategy.parameter_device}


def test_the_kind_of_variable(strategy):
    with strategy.scope():
        v = rx.Variable([1.0, 2.0], name="v")
    assert type(v) is rx.AggregatingVariable
    assert isinstance(v, rx.Variable)
    assert not isinstance(v, (rx.Mirrored, rx.DistributedValues))
    assert v.strategy is strategy
    assert repr(v) == "<AggregatingVariable 'v' float32[2]>"


def test_it_lies_on_the_parameter_device_before_and_after_steps(runner, strategy):
    with strategy.scope():
        v = rx.Variable(jnp.ones(2), name="v")
    step = runner(lambda x: strategy.run(lambda x: v.assign_add(mean(x)), args=(x,)))
    x = rx.PerReplica([jnp.zeros(2), jnp.full(2, 2.0)])
    for steps in range(3):
        assert v._value.devices() == home(strategy)
        assert v.value.devices() == home(strategy)
        assert [value.devices() for value in v.values] == [home(strategy)]
        np.testing.assert_array_equal(v, np.full(2, 1.0 + steps))
        step(x)
    v.assign(jnp.zeros(2))
    assert v.value.devices() == home(strategy)


def mean(x):
    return rx.get_replica_context().all_reduce("mean", x)


def test_replicas_read_a_copy_on_their_own_device(strategy):
    with strategy.scope():
        v = rx.Variable(1.0)
    seen = []
    strategy.run(lambda: seen.append(v.value))
    assert [x.devices() for x in seen] == [{d} for d in strategy.replica_mesh.devices]


def test_what_was_read_stays_valid_after_later_steps(runner, strategy):
    with strategy.scope():
        v = rx.Variable(jnp.ones(2))
    step = runner(lambda: strategy.run(lambda: v.assign_add(jnp.ones(2))))
    step()
    read = [v.value, v.read_value(), v.values[0]]
    for _ in range(3):
        step()
    for array in read:
        np.testing.assert_array_equal(array, [2, 2])
    np.testing.assert_array_equal(v, [5, 5])


@pytest.mark.parametrize("make", [jnp.array, np.array])
def test_it_does_not_share_memory_with_its_source(strategy, make):
    source = make([1.0, 2.0], np.float32)
    if isinstance(source, jax.Array):
        source = jax.device_put(source, strategy.parameter_device)
    with strategy.scope():
        v = rx.Variable(source)
        w = rx.Variable([0.0, 0.0])
    w.assign(source)
    if isinstance(source, np.ndarray):
        source[:] = 9
    else:
        source.delete()
    np.testing.assert_array_equal(v, [1, 2])
    np.testing.assert_array_equal(w, [1, 2])


def test_creation_in_a_replica_and_in_a_function(runner, strategy):
    made = []

    def replica_fn():
        if not made:
            made.append(rx.Variable([1.0, 2.0], name="late"))
        made[0].assign_add(jnp.ones(2))

    step = runner(lambda: strategy.run(replica_fn))
    for _ in range(2):
        step()
    assert type(made[0]) is rx.AggregatingVariable
    assert made[0].value.devices() == home(strategy)
    np.testing.assert_array_equal(made[0], [3, 4])


# --- writes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("sum", 21.0), ("mean", 10.5), ("only_first_replica", 1.0)]
)
@pytest.mark.parametrize("call", ["assign", "assign_add", "assign_sub"])
def test_the_replicas_values_are_aggregated(runner, aggregation, expected, call):
    strategy = central(2)
    with strategy.scope():
        v = rx.Variable(100.0, aggregation=aggregation)
    step = runner(lambda x: strategy.run(getattr(v, call), args=(x,)))
    step(rx.PerReplica([1.0, 20.0]))
    sign = {"assign": 1, "assign_add": 1, "assign_sub": -1}[call]
    assert float(v) == (0.0 if call == "assign" else 100.0) + sign * expected


def test_a_varying_value_is_refused(runner, strategy):
    with strategy.scope():
        v = rx.Variable(1.0, name="v")
    step = runner(lambda x: strategy.run(v.assign, args=(x,)))
    with pytest.raises(rx.errors.VaryingWriteError, match="`v`"):
        step(rx.PerReplica([1.0, 2.0]))
    assert float(v) == 1.0


def test_a_per_replica_value_is_refused_across_replicas(strategy):
    with strategy.scope():
        v = rx.Variable(1.0, name="v")
    with pytest.raises(rx.errors.VaryingWriteError, match=r"`v\.assign`"):
        v.assign(rx.PerReplica([1.0, 2.0]))


def test_writes_across_replicas(runner, strategy):
    with strategy.scope():
        v = rx.Variable([1.0, 2.0])

    def fn():
        v.assign_add([1.0, 1.0])
        v.at[0].set(7.0)
        v.scatter_sub(rx.IndexedSlices(np.float32([2]), np.array([1])))

    runner(fn)()
    np.testing.assert_array_equal(v, [7, 1])
    assert v.value.devices() == home(strategy)


def test_rows_of_a_table(runner, strategy):
    with strategy.scope():
        table = rx.Variable(jnp.zeros((3, 2)), aggregation="sum")

    def replica_fn(i):
        table.scatter_add(rx.IndexedSlices(jnp.ones((1, 2)), i.reshape(1)))

    runner(lambda i: strategy.run(replica_fn, args=(i,)))(rx.PerReplica([0, 2]))
    np.testing.assert_array_equal(table, [[1, 1], [0, 0], [1, 1]])
    assert table.value.devices() == home(strategy)


def test_update_reduce_to_and_broadcast_to(runner, strategy):
    with strategy.scope():
        v = rx.Variable(1.0, name="v")
    runner(lambda x: strategy.extended.update(v, lambda v, x: v.assign_add(x), args=(x,)))(2.0)
    assert float(v) == 3.0
    assert v.value.devices() == home(strategy)
    total = strategy.extended.reduce_to("sum", rx.PerReplica([1.0, 20.0]), v)
    assert (float(total), total.devices()) == (21.0, home(strategy))
    assert strategy.extended.broadcast_to(1.0, v).devices() == home(strategy)
    with pytest.raises(rx.errors.VaryingWriteError, match="`v`"):
        strategy.extended.update(v, lambda v, x: v.assign(x), args=(rx.PerReplica([1.0, 2.0]),))


def test_on_read_variables_have_a_value_a_replica(runner, strategy):
    with strategy.scope():
        v = rx.Variable(0, synchronization="on_read", aggregation="sum")
    step = runner(lambda x: strategy.run(v.assign_add, args=(x,)))
    step(rx.PerReplica([3, 4]))
    assert type(v) is rx.SyncOnReadVariable
    assert int(v) == 7
    v.assign(9)
    assert [int(value) for value in strategy.local_results(v)] == [5, 4]


def test_reduce_and_local_results(runner, strategy):
    with strategy.scope():
        v = rx.Variable([1.0, 2.0], name="v")
    mean_of = runner(lambda: strategy.reduce("mean", v, axis=None))
    np.testing.assert_array_equal(mean_of(), [1, 2])
    with pytest.raises(rx.errors.InvalidArgumentError):
        strategy.reduce("sum", v, axis=None)
    assert [one.shape for one in strategy.local_results({"v": v})[0].values()] == [(2,)]


def test_a_result_is_not_the_variable_s_array(runner, strategy):
    with strategy.scope():
        v = rx.Variable(1.0)
    step = runner(lambda: strategy.run(lambda: (v.assign_add(1.0), v.value)[1]))
    results = [step() for _ in range(3)]
    assert [float(x) for x in results] == [2.0, 3.0, 4.0]


# --- training ------------------------------------------------------------------------------------

OPTIMIZERS = {"sgd": optax.sgd(0.01), "adam": optax.adam(0.01)}


@functools.cache
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(1.0, 0.5, (STEPS, 12, 3)).astype(np.float32)
    return x, x @ np.float32([[1.0], [-2.0], [0.5]])


WEIGHTS = np.float32([[0.5], [0.5], [0.5]])


@jax.jit
def gradient(w, x, y):
    return jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)


@functools.cache
def stepped(optimizer):
    """A jitted step of the optimizer, the same for all tests."""

    def step(g, state, w):
        change, state = OPTIMIZERS[optimizer].update(g, state)
        return optax.apply_updates(w, change), state

    return jax.jit(step)


@functools.cache
def expected(optimizer):
    """The weights that one device gives."""
    w = jnp.asarray(WEIGHTS)
    state = OPTIMIZERS[optimizer].init(w)
    for x, y in zip(*data(), strict=True):
        w, state = stepped(optimizer)(gradient(w, x, y), state, w)
    return np.asarray(w)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("n", "parameter_device"),
    [(1, 0), (2, 0), (3, 2), pytest.param(4, 6, marks=pytest.mark.slow)],
)
def test_twenty_steps_give_the_weights_of_one_device(runner, optimizer, n, parameter_device):
    strategy = central(n, parameter_device)
    transform = OPTIMIZERS[optimizer]
    update = stepped(optimizer)
    with strategy.scope():
        w = rx.Variable(WEIGHTS, name="w")
        state = jax.tree.map(rx.Variable, transform.init(jnp.asarray(WEIGHTS)))

    def replica_fn(x, y):
        reduced = mean(gradient(w.value, x, y))
        before = jax.tree.map(lambda v: v.value, state)
        new_w, after = update(reduced, before, w.value)
        w.assign(new_w)
        jax.tree.map(lambda v, value: v.assign(value), state, after)

    step = runner(lambda x, y: strategy.run(replica_fn, args=(x, y)))
    options = rx.InputOptions(global_batch_size=12)
    x, y = (part.reshape(-1, part.shape[-1]) for part in data())
    for batch in strategy.distribute_dataset((x, y), options):
        step(*batch)
    np.testing.assert_allclose(w, expected(optimizer), rtol=1e-5, atol=1e-6)
    for variable in [w, *jax.tree.leaves(state)]:
        assert variable.value.devices() == {strategy.parameter_device}
