"""`rx.function` as Python sees it: arguments, results, names, methods, errors."""

from __future__ import annotations

import copy
import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


def type_name(value):
    return type(value).__name__


def double(x):
    """Twice."""
    return x * 2


@pytest.fixture
def step(strategy):
    return rx.function(lambda x: strategy.run(double, args=(x,)))


# --- making one --------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [3, "text", jnp.ones(2)], ids=str)
def test_what_is_no_function_is_refused(fn):
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"rx\.function takes a function"):
        rx.function(fn)


def test_with_and_without_arguments():
    assert isinstance(rx.function(double), rx.Function)
    assert isinstance(rx.function()(double), rx.Function)
    assert isinstance(rx.function(donate="x")(double), rx.Function)


def test_name_doc_and_the_wrapped_function_are_kept():
    wrapped = rx.function(double)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__) == ("double", "Twice.", double)
    assert repr(wrapped) == "<rx.function double>"
    assert repr(rx.function(functools.partial(double))) == "<rx.function partial>"


def test_lambdas_partials_and_callable_objects():
    class Scale:
        def __call__(self, x, by=2):
            return x * by

    assert float(rx.function(lambda x: x * 2)(3.0)) == 6.0
    assert float(rx.function(functools.partial(Scale(), by=3))(3.0)) == 9.0
    assert float(rx.function(Scale())(3.0, by=4)) == 12.0


def test_keywords_and_defaults():
    @rx.function
    def step(x, *rest, scale=2.0, **others):
        return x * scale + sum(rest) + sum(others.values())

    assert float(step(1.0)) == 2.0
    assert float(step(1.0, 10.0, 20.0)) == 32.0
    assert float(step(x=1.0, scale=5.0, more=100.0)) == 105.0


def test_missing_and_superfluous_arguments_are_pythons_to_refuse():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        rx.function(double)()
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        rx.function(double)(1.0, 2.0)


# --- arguments ---------------------------------------------------------------------------------


def arrays(strategy, other):
    home, away = strategy.replica_mesh, other.replica_mesh
    x = np.arange(4.0, dtype=np.float32)
    return {
        "numpy": x,
        "jax": jnp.array(x),
        "on another device": jax.device_put(x, jax.devices()[5]),
        "mirrored": home.place_mirrored(x),
        "sharded": jax.device_put(x, home.stacked),
        "mirrored elsewhere": away.place_mirrored(x),
        "sharded elsewhere": jax.device_put(x, away.stacked),
        "rx.Mirrored": rx.Mirrored(jnp.array(x)),
    }


KINDS = list(arrays(rx.OneDeviceStrategy(), rx.OneDeviceStrategy()))


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_from_anywhere(step, strategy, other, kind):
    for _ in range(2):
        result = step(arrays(strategy, other)[kind])
        np.testing.assert_array_equal(result, np.arange(4) * 2)
        assert result.sharding.device_set == set(strategy.replica_mesh.devices)


def test_one_function_takes_arrays_from_anywhere_in_turn(step, strategy, other):
    for x in arrays(strategy, other).values():
        np.testing.assert_array_equal(step(x), np.arange(4) * 2)


@pytest.mark.parametrize("value", [2, 2.0, True, 2j, np.float64(2), np.int64(2)])
def test_numbers(step, value):
    assert step(value) == value * 2


def test_a_per_replica_value_of_another_strategy(step, other):
    ids = other.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
    assert [int(x) for x in step(ids).values] == [0, 2]
    compiled = rx.function(
        lambda: other.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
    )()
    assert [int(x) for x in step(compiled).values] == [0, 2]


@pytest.mark.parametrize("value", ["text", object(), b"bytes", {1, 2}], ids=type_name)
@pytest.mark.parametrize("before", [False, True])
def test_what_is_no_array_is_refused_in_the_first_and_later_calls(value, before):
    wrapped = rx.function(lambda tree: tree["a"])
    if before:
        wrapped({"a": 1.0})
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"Argument `tree\['a'\]`") as caught:
        wrapped({"a": value})
    assert "static_argnames" in str(caught.value)
    assert float(wrapped({"a": 2.0})) == 2.0


def test_shapes_dtypes_and_structures_may_change_from_call_to_call(step):
    for x in (np.ones(2), np.ones(3), np.ones((2, 2), np.int32), {"a": np.ones(1)}):
        if not isinstance(x, dict):
            np.testing.assert_array_equal(step(x), x * 2)
    wrapped = rx.function(lambda tree: jax.tree.map(double, tree))
    assert float(wrapped({"a": 1.0})["a"]) == 2.0
    assert float(wrapped([1.0])[0]) == 2.0


# --- static arguments --------------------------------------------------------------------------


def test_static_arguments_wherever_they_stand():
    @rx.function(static_argnames=("mode", "n"))
    def step(mode, x, n=1):
        return x * (2 if mode == "double" else 3) * n

    assert float(step("double", 1.0)) == 2.0
    assert float(step("triple", 1.0, 10)) == 30.0
    assert float(step(x=1.0, mode="double", n=5)) == 10.0


def test_static_values_that_are_equal_but_of_other_types():
    step = rx.function(lambda x, n: (x, 1 if n is True else 2), static_argnames="n")
    assert int(step(1.0, 1)[1]) == 2
    assert int(step(1.0, True)[1]) == 1
    assert step.collectives(1.0, n=1) == ()
    assert step.requested_collectives(1.0, n=1) == ()


@pytest.mark.parametrize("value", [[1], {"a": 1}, np.ones(2)], ids=str)
def test_a_static_value_that_cannot_be_hashed_is_refused(value):
    step = rx.function(lambda x, mode: x, static_argnames="mode")
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"`mode`.*cannot be hashed"):
        step(1.0, value)


def test_an_unknown_static_name_is_refused():
    with pytest.raises(rx.errors.InvalidArgumentError, match="`double` has no such parameter"):
        rx.function(double, static_argnames="mode")
    rx.function(lambda **options: 1.0, static_argnames="mode")(mode="any")


# --- results -----------------------------------------------------------------------------------


def test_none_and_numbers():
    assert rx.function(lambda: None)() is None
    number, flag, nothing = rx.function(lambda: (3, True, None))()
    assert (int(number), bool(flag), nothing) == (3, True, None)


@pytest.mark.parametrize("value", ["text", object()], ids=type_name)
def test_what_is_no_array_cannot_be_returned(value):
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"at `result\['a'\]\[1\]`"):
        rx.function(lambda: {"a": (1.0, value)})()


# --- donation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("donate", ["state", 0, ("state",), [0]])
def test_donation_by_name_and_position(strategy, donate):
    @rx.function(donate=donate)
    def step(state, x):
        return strategy.run(lambda s, x: s + x, args=(state, x))

    state = step(jnp.zeros(3), 1.0)
    after = step(state, 1.0)
    assert state.is_deleted()
    np.testing.assert_array_equal(after, [2, 2, 2])


@pytest.mark.parametrize("donate", ["y", 3, -1, True, ("x", "y")])
def test_donation_of_an_unknown_parameter_is_refused(donate):
    with pytest.raises(rx.errors.InvalidArgumentError, match="names or positions of x"):
        rx.function(double, donate=donate)


@pytest.mark.parametrize("donate", [None, 1.5])
def test_donation_of_what_is_no_name_is_refused(donate):
    with pytest.raises(rx.errors.ArgumentTypeError, match="neither a name nor a position"):
        rx.function(double, donate=donate)


@pytest.mark.parametrize("donates", [True, False])
def test_an_array_that_was_given_away_is_refused(strategy, donates):
    """Some releases of jax end the process here."""
    giver = rx.function(lambda x: strategy.run(double, args=(x,)), donate="x")
    taker = giver if donates else rx.function(lambda x: strategy.run(double, args=(x,)))
    taker(taker(jnp.ones(3)))
    state = giver(jnp.ones(3))
    giver(state)
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"Argument `x`.*deleted") as caught:
        taker(state)
    assert "state, out = step(state, batch)" in str(caught.value)


def test_state_that_comes_back_varying_is_refused(strategy):
    @rx.function(donate="state")
    def step(state):
        def replica_fn(state):
            return state + rx.get_replica_context().replica_id_in_sync_group

        return strategy.run(replica_fn, args=(state,))

    with pytest.raises(rx.errors.VaryingWriteError, match="State `state` goes into `step`"):
        step(jnp.ones(2))


# --- nesting -----------------------------------------------------------------------------------


def test_nested_functions(strategy):
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    @rx.function
    def inner(x):
        strategy.run(w.assign_add, args=(x,))
        return w.value

    @rx.function
    def outer(x):
        return inner(x) + inner(x)

    assert float(outer(1.0)) == 5.0
    assert float(w) == 3.0


def test_a_function_inside_a_replica(run):
    inner = rx.function(lambda x: rx.get_replica_context().all_reduce("sum", x))
    assert float(run(lambda: inner(1.0))) == 2.0


def test_recursion():
    @functools.partial(rx.function, static_argnames="n")
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    assert float(power(2.0, 5)) == 32.0


def test_scopes_inside_and_outside(strategy, other):
    @rx.function
    def step(x):
        with strategy.scope():
            return strategy.run(double, args=(x,))

    assert float(step(1.0)) == 2.0
    with strategy.scope():
        assert float(step(1.0)) == 2.0
    with other.scope(), pytest.raises(rx.errors.MixedStrategiesError):
        step(1.0)


# --- methods -----------------------------------------------------------------------------------


class Model:
    def __init__(self, strategy, scale):
        self.scale = scale
        self.traces = 0
        with strategy.scope():
            self.w = rx.Variable(0.0, name="w")
        self.strategy = strategy

    @rx.function
    def step(self, x, by=1.0):
        """One step."""
        self.traces += 1
        self.strategy.run(self.w.assign_add, args=(x * by,))
        return self.w.value * self.scale

    @rx.function(donate="state", static_argnames="mode")
    def update(self, state, mode="add"):
        return self.strategy.run(
            lambda s: s + self.scale if mode == "add" else s * self.scale, args=(state,)
        )


def test_a_method_knows_its_object(strategy):
    one, ten = Model(strategy, 1.0), Model(strategy, 10.0)
    assert float(one.step(1.0)) == 1.0
    assert float(ten.step(2.0, by=3.0)) == 60.0
    assert float(one.step(1.0)) == 2.0
    assert (one.traces, ten.traces) == (1, 1)
    assert one.step.__doc__ == "One step."
    assert one.step.__self__ is one
    assert repr(one.step) == "<rx.function step>"
    assert [c.kind for c in one.step.collectives(1.0)] == []
    assert isinstance(Model.step, rx.Function)


def test_options_of_a_method_count_self(strategy):
    model = Model(strategy, 3.0)
    state = model.update(jnp.ones(2))
    np.testing.assert_array_equal(model.update(state, mode="times"), [12, 12])
    assert state.is_deleted()


def test_a_method_does_not_keep_its_object_alive(strategy):
    model = Model(strategy, 1.0)
    model.step(1.0)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    assert float(Model(strategy, 5.0).step(1.0)) == 5.0


def test_a_method_of_an_object_without_weak_references():
    class Slots:
        __slots__ = ("scale",)

        @rx.function
        def step(self, x):
            return x * self.scale

    one = Slots()
    one.scale = 3.0
    assert float(one.step(2.0)) == 6.0


def test_errors_of_a_method_name_its_arguments(strategy):
    with pytest.raises(rx.errors.ArgumentTypeError, match="Argument `x`"):
        Model(strategy, 1.0).step("text")


def test_a_deep_copy_is_a_function_of_its_own():
    class Holder:
        def __init__(self):
            self.scale = 2.0
            self.step = rx.function(self.plain)

        def plain(self, x):
            return x * self.scale

    holder = Holder()
    assert float(holder.step(1.0)) == 2.0
    twin = copy.deepcopy(holder)
    twin.scale = 5.0
    assert float(twin.step(1.0)) == 5.0
    assert float(holder.step(1.0)) == 2.0


# --- errors inside -----------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["first call", "later shape"])
def test_an_exception_leaves_variables_as_they_were(strategy, when):
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
    calls = []

    @rx.function
    def step(x):
        calls.append(x.shape)
        strategy.run(lambda: w.assign_add(1.0))
        if x.shape == (3,):
            raise ValueError("mine")
        return w.value

    if when == "later shape":
        step(np.ones(2))
    before = float(w)
    calls.clear()
    with pytest.raises(ValueError, match=r"^mine"):
        step(np.ones(3))
    assert calls == [(3,)]
    assert float(w) == before
    assert float(step(np.ones(2))) == before + 1


def test_other_variables_in_each_trace_are_found(strategy):
    with strategy.scope():
        a, b = rx.Variable(1.0, name="a"), rx.Variable(1.0, name="b")

    @rx.function
    def step(x):
        which = a if x.shape == (1,) else b
        strategy.run(lambda: which.assign_add(1.0))

    for shape in [1, 2, 1, 2]:
        step(np.ones(shape))
    assert (float(a), float(b)) == (3.0, 3.0)


def test_a_variable_as_a_result_is_its_new_value(strategy):
    with strategy.scope():
        w, v = rx.Variable(1.0, name="w"), rx.Variable(5.0, name="v")

    @rx.function
    def step():
        strategy.run(lambda: w.assign_add(1.0))
        return {"w": w, "v": v}

    assert [float(step()["w"]) for _ in range(3)] == [2.0, 3.0, 4.0]
    v.assign(7.0)
    assert float(step()["v"]) == 7.0
