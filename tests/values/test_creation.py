"""Where variables can be created, and what they start from."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

KINDS = {
    "mirrored": (rx.MirroredVariable, {}),
    "on_read": (rx.SyncOnReadVariable, {"synchronization": "on_read", "aggregation": "mean"}),
}


@pytest.fixture(params=KINDS)
def kind(request):
    """The class of a variable, and the options that ask for it."""
    return KINDS[request.param]


@pytest.fixture
def context():
    return rx.get_replica_context


def copies(variable):
    return [np.asarray(value).tolist() for value in variable.values]


# --- in scope ------------------------------------------------------------------------------------


@pytest.mark.parametrize("synchronization", ["auto", rx.VariableSynchronization.ON_WRITE])
def test_on_write_makes_a_mirrored_variable(strategy, synchronization):
    with strategy.scope():
        v = rx.Variable(1.0, synchronization=synchronization)
    assert type(v) is rx.MirroredVariable
    assert isinstance(v, rx.Mirrored)


def test_each_kind_has_a_copy_a_replica_on_its_device(strategy, kind):
    expected, options = kind
    with strategy.scope():
        v = rx.Variable([1.0, 2.0], name="v", **options)
    assert type(v) is expected
    assert v.strategy is strategy
    assert copies(v) == [[1.0, 2.0]] * 2
    devices = [next(iter(value.devices())) for value in v.values]
    assert devices == list(strategy.replica_mesh.devices)
    assert repr(v) == f"<{expected.__name__} 'v' float32[2]>"


def test_an_initializer_is_called_once_for_all_replicas(strategy, kind):
    calls = []
    with strategy.scope():
        v = rx.Variable(lambda: calls.append(1) or jnp.ones(2), **kind[1])
    assert calls == [1]
    assert copies(v) == [[1.0, 1.0]] * 2


def test_another_variable_is_an_initial_value(strategy, kind):
    with strategy.scope():
        first = rx.Variable([1.0, 2.0], **kind[1])
        second = rx.Variable(first, **kind[1])
    first.assign(jnp.zeros(2))
    assert copies(second) == [[1.0, 2.0]] * 2


def test_a_key_is_an_initial_value(strategy):
    with strategy.scope():
        v = rx.Variable(jax.random.key(3))
        own = rx.Variable(
            jax.random.key(3), synchronization="on_read", aggregation="only_first_replica"
        )
    expected = jax.random.key_data(jax.random.key(3))
    np.testing.assert_array_equal(jax.random.key_data(v.value), expected)
    np.testing.assert_array_equal(jax.random.key_data(own.value), expected)


def test_synchronization_none_is_refused(strategy):
    with strategy.scope(), pytest.raises(rx.errors.InvalidArgumentError, match="ON_READ"):
        rx.Variable(1.0, synchronization="none")


@pytest.mark.parametrize("synchronization", ["on_write", "on_read"])
@pytest.mark.parametrize("value", [1, True])
def test_a_mean_of_integers_is_refused(strategy, synchronization, value):
    with strategy.scope(), pytest.raises(rx.errors.InvalidArgumentError, match=r"`n`.*MEAN"):
        rx.Variable(value, name="n", synchronization=synchronization, aggregation="mean")


@pytest.mark.parametrize("value", [True, jax.random.key_data])
def test_a_sum_of_what_has_none_is_refused(strategy, value):
    value = jax.random.key(0) if callable(value) else value
    with strategy.scope(), pytest.raises(rx.errors.InvalidArgumentError, match=r"`n`.*SUM"):
        rx.Variable(value, name="n", synchronization="on_read", aggregation="sum")


@pytest.mark.parametrize("where", ["scope", "replica", "function"])
def test_a_per_replica_value_is_no_initial_value(strategy, kind, where):
    values = rx.PerReplica([1.0, 2.0])

    def create():
        rx.Variable(values, name="v", **kind[1])

    call = {
        "scope": create,
        "replica": lambda: strategy.run(create),
        "function": rx.function(create),
    }[where]
    with strategy.scope(), pytest.raises(rx.errors.InvalidArgumentError, match="start from one"):
        call()


# --- in replica context --------------------------------------------------------------------------


def test_replicas_create_one_variable(run, strategy, kind):
    made = []

    def replica_fn():
        if not made:
            made.append(rx.Variable(1.0, name="late", **kind[1]))
        made[0].assign_add(1.0)

    for _ in range(3):
        run(replica_fn)
    assert len(set(map(id, made))) == 1
    v = made[0]
    assert type(v) is kind[0]
    assert (v.name, v.strategy) == ("late", strategy)
    assert copies(v) == [4.0, 4.0]


def test_what_it_starts_from_is_replica_0s_value(strategy, context):
    made = []

    def replica_fn():
        made.append(rx.Variable(5.0 + context().replica_id_in_sync_group))
        return made[-1].value

    assert float(strategy.run(replica_fn)) == 5.0
    assert made[0] is made[1]
    assert copies(made[0]) == [5.0, 5.0]


def test_in_a_replica_an_initializer_is_called_once(run, kind):
    made, calls = [], []

    def initial():
        calls.append(1)
        return jnp.ones(2)

    def replica_fn():
        if not made:
            made.append(rx.Variable(initial, **kind[1]))
        return made[0] + 1

    for _ in range(2):
        run(replica_fn)
    assert calls == [1]


def test_several_in_the_same_order(run, kind):
    made = {}

    def replica_fn(x):
        if "a" not in made:
            made["a"] = rx.Variable(1.0, name="a", **kind[1])
        made["a"].assign_add(x)
        if "b" not in made:
            made["b"] = rx.Variable(10.0, name="b", **kind[1])
        made["b"].assign_add(made["a"])

    for _ in range(2):
        run(replica_fn, jnp.float32(1))
    assert copies(made["a"]) == [3.0, 3.0]
    assert copies(made["b"]) == [15.0, 15.0]


def test_each_replica_writes_its_own_copy_at_once(run, strategy):
    made = []

    def replica_fn(x):
        if not made:
            made.append(rx.Variable(0, synchronization="on_read", aggregation="sum"))
        made[0].assign_add(x)

    for _ in range(2):
        run(replica_fn, rx.PerReplica([1, 20]))
    assert copies(made[0]) == [2, 40]
    assert int(made[0]) == 42


def test_a_varying_write_to_a_new_variable_is_refused(run):
    made = []

    def replica_fn(x):
        if not made:
            made.append(rx.Variable(0.0, name="late"))
        made[0].assign(x)

    with pytest.raises(rx.errors.VaryingWriteError, match="`late`"):
        run(replica_fn, rx.PerReplica([1.0, 2.0]))
    assert copies(made[0]) == [0.0, 0.0]


DIFFERENT = {
    "shape": lambda i: rx.Variable(jnp.zeros(2 + i)),
    "name": lambda i: rx.Variable(0.0, name=f"v{i}"),
    "dtype": lambda i: rx.Variable(0, dtype=[jnp.int32, jnp.float32][i]),
    "dtype of the value": lambda i: rx.Variable([0, 0.5][i]),
    "trainable": lambda i: rx.Variable(0.0, trainable=bool(i)),
    "synchronization": lambda i: rx.Variable(0.0, synchronization=["auto", "on_read"][i]),
    "aggregation": lambda i: rx.Variable(0.0, aggregation=["sum", "mean"][i]),
}


@pytest.mark.parametrize("fact", DIFFERENT)
def test_replicas_that_create_different_variables_are_refused(strategy, context, fact):
    def replica_fn():
        DIFFERENT[fact](context().replica_id_in_sync_group)

    with pytest.raises(rx.errors.CollectiveMismatchError) as caught:
        strategy.run(replica_fn)
    message = str(caught.value)
    assert "create different variables" in message
    assert message.count(f"{fact.split()[0]}=") == 2
    assert message.count("test_creation.py:") == 2
    assert "What to do" in message


def test_one_way_to_say_a_thing_is_as_good_as_another(strategy, context):
    def replica_fn():
        i = context().replica_id_in_sync_group
        aggregation = [rx.VariableAggregation.SUM, "sum"][i]
        dtype = [jnp.float32, "float32"][i]
        first = rx.Variable(1.0, aggregation=aggregation, dtype=dtype)
        return first + rx.Variable([1.0, np.float32(1)][i]) + rx.Variable([first, 1.0][i])

    assert float(strategy.run(replica_fn)) == 3.0


@pytest.mark.parametrize("creator", [0, 1])
def test_creation_on_one_replica_is_refused(strategy, context, creator):
    def replica_fn():
        if context().replica_id_in_sync_group == creator:
            rx.Variable(0.0, name="mine")

    with pytest.raises(rx.errors.CollectiveMismatchError) as caught:
        strategy.run(replica_fn)
    message = str(caught.value)
    assert "test_creation.py:" in message
    assert "What to do" in message


def test_creation_on_one_replica_and_a_collective_on_another_are_refused(strategy, context):
    def replica_fn():
        if context().replica_id_in_sync_group == 0:
            rx.Variable(0.0, name="mine")
        else:
            context().all_reduce("sum", 1.0)

    with pytest.raises(rx.errors.CollectiveMismatchError) as caught:
        strategy.run(replica_fn)
    assert str(caught.value).count("test_creation.py:") == 2


def test_creation_under_a_branch_that_varies_is_refused(strategy, context):
    @rx.function
    def step():
        def replica_fn():
            if context().replica_id_in_sync_group == 0:
                rx.Variable(0.0)

        strategy.run(replica_fn)

    with pytest.raises(rx.errors.VaryingControlFlowError):
        step()


def test_in_a_merge_call(run, kind):
    made = []

    def merge_fn(strategy, x):
        if not made:
            made.append(rx.Variable(1.0, name="late", **kind[1]))
        made[0].assign_add(1.0)
        return strategy.reduce("sum", x, axis=None) + made[0]

    def replica_fn(x):
        return rx.get_replica_context().merge_call(merge_fn, args=(x,))

    x = rx.PerReplica([1.0, 2.0])
    results = [float(run(replica_fn, x)) for _ in range(2)]
    assert results == [5.0, 6.0]
    assert len(made) == 1
    assert copies(made[0]) == [3.0, 3.0]


def test_in_a_loss_function(run, strategy, kind):
    made = []

    def loss(x):
        if not made:
            made.append(rx.Variable(3.0, name="late", **kind[1]))
        made[0].assign_add(1.0)
        return x * x * made[0]

    def replica_fn(x):
        return rx.value_and_grad(loss)(x)

    for expected in (16.0, 20.0):
        results = strategy.local_results(run(replica_fn, jnp.float32(2)))
        assert [[float(x) for x in result] for result in results] == [[expected] * 2] * 2
    assert copies(made[0]) == [5.0, 5.0]


def test_inside_update_is_refused(runner, strategy):
    with strategy.scope():
        v = rx.Variable(1.0, name="v")
    step = runner(lambda: strategy.extended.update(v, lambda v: rx.Variable(v.value, name="w")))
    with pytest.raises(rx.errors.ContextError, match=r"`w` was created inside `extended\.update`"):
        step()


@pytest.mark.parametrize("value", ["text", None, [[1.0], [1.0, 2.0]]])
def test_in_a_replica_what_is_no_array_is_refused(run, value):
    with pytest.raises(rx.errors.ArgumentTypeError, match="initial value of variable `w`"):
        run(lambda: rx.Variable(value, name="w"))


# --- in an rx.function ---------------------------------------------------------------------------

LEVELS = ["cross", "replica"]


@pytest.fixture(params=LEVELS)
def at(request, strategy):
    """`at(fn)`: fn in a function, at cross-replica level or in the replica function."""

    def place(fn):
        if request.param == "replica":
            return rx.function(lambda *args: strategy.run(fn, args=args))

        @rx.function
        def step(*args):
            with strategy.scope():
                return fn(*args)

        return step

    return place


def test_created_at_the_first_call_and_found_later(at, kind, strategy):
    made = []

    @at
    def step(x):
        if not made:
            made.append(rx.Variable(0.0, name="late", **kind[1]))
        made[0].assign_add(x)
        return made[0] * 2

    for x, expected in [(1, 2.0), (2, 6.0), (3, 12.0)]:
        results = strategy.local_results(step(jnp.float32(x)))
        assert {float(result) for result in results} == {expected}
    assert len(made) == 1
    assert type(made[0]) is kind[0]
    assert float(made[0]) == 6.0
    made[0].assign(100.0)
    assert float(strategy.local_results(step(jnp.float32(1)))[1]) == 202.0


def test_another_step_may_use_it(at, strategy):
    made = []

    @at
    def first():
        if not made:
            made.append(rx.Variable([1.0, 2.0]))
        made[0].assign_add(jnp.ones(2))

    @at
    def second():
        made[0].assign(made[0] * 10)

    first()
    second()
    first()
    np.testing.assert_array_equal(made[0], [21, 31])


def test_another_one_for_each_shape(at, kind):
    made = {}

    @at
    def step(x):
        if x.shape not in made:
            made[x.shape] = rx.Variable(np.zeros(x.shape, np.float32), **kind[1])
        made[x.shape].assign_add(x)

    for length in (2, 3, 2, 3, 2):
        step(jnp.ones(length))
    np.testing.assert_array_equal(made[2,], [3, 3])
    np.testing.assert_array_equal(made[3,], [2, 2, 2])


def test_after_a_step_was_compiled(at, strategy, kind):
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
    variables = [w]

    @at
    def step(x):
        for variable in variables:
            variable.assign_add(x.sum())

    step(jnp.ones(1))
    with strategy.scope():
        variables.append(rx.Variable(10.0, **kind[1]))
    step(jnp.ones(2))  # traced anew, with both variables
    step(jnp.ones(1))  # the first trace, with one
    assert float(w) == 5.0
    assert float(variables[1]) == 12.0


def test_without_a_guard_it_is_refused(at, kind):
    @at
    def step():
        return rx.Variable(1.0, name="again", **kind[1]) + 1

    with pytest.raises(rx.errors.ContextError, match=r"creates variable `again` each time"):
        step()


def test_from_a_traced_value_it_is_refused(at, kind):
    @at
    def step(x):
        rx.Variable(x, name="late", **kind[1])

    with pytest.raises(rx.errors.ContextError, match=r"`late` was created from a value that"):
        step(jnp.ones(2))


def test_an_initializer_that_returns_a_traced_value_is_refused(at, kind):
    @at
    def step(x):
        rx.Variable(lambda: x + 1, name="late", **kind[1])

    with pytest.raises(rx.errors.ContextError, match=r"`late` was created from a value that"):
        step(jnp.ones(2))


def test_a_key_is_created_in_a_function(at, strategy):
    made = []

    @at
    def step():
        if not made:
            made.append(rx.Variable(lambda: jax.random.key(3), name="key"))
        key, used = jax.random.split(made[0].value)
        made[0].assign(key)
        return jax.random.uniform(used)

    first, second = float(step()), float(step())
    key, used = jax.random.split(jax.random.key(3))
    assert first == float(jax.random.uniform(used))
    assert second == float(jax.random.uniform(jax.random.split(key)[1]))


def test_asking_for_the_collectives_first_changes_nothing(at, kind):
    made = []

    @at
    def step():
        if not made:
            made.append(rx.Variable(1.0, **kind[1]))
        made[0].assign_add(1.0)

    step.collectives()
    assert float(made[0]) == 1.0
    step()
    assert float(made[0]) == 2.0


def test_what_was_created_before_an_error_stays(at):
    made, broken = [], [True]

    @at
    def step():
        if not made:
            made.append(rx.Variable(1.0))
        made[0].assign_add(1.0)
        if broken:
            raise KeyError(broken.pop())

    with pytest.raises(KeyError):
        step()
    assert float(made[0]) == 1.0
    step()
    assert float(made[0]) == 2.0


def test_a_function_outside_of_every_scope():
    made = []

    @rx.function
    def step(x):
        if not made:
            made.append(rx.Variable(lambda: jnp.zeros(2)))
        made[0].assign_add(x)
        return made[0].value

    step(jnp.ones(2))
    np.testing.assert_array_equal(step(jnp.ones(2)), [2, 2])
    assert type(made[0]) is rx.Variable


def test_under_jax_jit_it_is_refused(strategy):
    @jax.jit
    def step(x):
        return strategy.run(lambda: rx.Variable(0.0) + x)

    with pytest.raises(rx.errors.ContextError, match=r"jax\.jit"):
        step(1.0)


# --- random initial values -----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["scope", "replica", "function"])
def test_one_key_gives_the_same_weights_on_any_number_of_replicas(where):
    key = jax.random.key(7)
    expected = jax.random.normal(key, (3, 2))

    def weights(n):
        strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(n)])
        made = []

        def create():
            if not made:
                made.append(rx.Variable(lambda: jax.random.normal(key, (3, 2))))

        with strategy.scope():
            if where == "scope":
                create()
            elif where == "replica":
                strategy.run(create)
            else:
                rx.function(lambda: strategy.run(create))()
        return made[0].values

    for n in (1, 2, 4):
        found = weights(n)
        assert len(found) == n
        for value in found:
            np.testing.assert_array_equal(value, expected)


# --- copies --------------------------------------------------------------------------------------


@pytest.fixture
def different(strategy):
    """A variable whose copies differ."""
    with strategy.scope():
        v = rx.Variable(0.0, name="v", synchronization="on_read", aggregation="sum")
    v.assign(rx.PerReplica([1.0, 20.0]))
    return v


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_has_the_value_of_each_replica(different, strategy, duplicate):
    twin = duplicate(different)
    assert type(twin) is rx.SyncOnReadVariable
    assert (twin.strategy, twin.name, twin.aggregation) == (strategy, "v", different.aggregation)
    assert twin.synchronization is different.synchronization
    assert copies(twin) == [1.0, 20.0]
    twin.assign(0.0)
    assert copies(different) == [1.0, 20.0]


def test_a_copy_in_a_replica(run, strategy, kind):
    with strategy.scope():
        v = rx.Variable(1.0, name="v", **kind[1])
    made = []

    def replica_fn():
        if not made:
            made.append(copy.deepcopy(v))
        made[0].assign_add(1.0)

    for _ in range(2):
        run(replica_fn)
    assert made[0] is not v
    assert type(made[0]) is kind[0]
    assert copies(made[0]) == [3.0, 3.0]
    assert copies(v) == [1.0, 1.0]


def test_a_copy_in_a_function_of_what_each_replica_holds(different):
    made = []

    @rx.function
    def step():
        if not made:
            made.append(copy.deepcopy(different))
        return made[0] * 1

    assert float(step()) == 21.0
    assert copies(made[0]) == [1.0, 20.0]


def test_a_copy_in_a_replica_of_what_each_replica_holds(run, strategy, different):
    made = []

    def replica_fn():
        if not made:
            made.append(copy.deepcopy(different))
        return made[0].value

    assert [float(x) for x in strategy.local_results(run(replica_fn))] == [1.0, 20.0]
    assert copies(made[0]) == [1.0, 20.0]
