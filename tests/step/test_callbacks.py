"""Host callbacks in a step: who raises is told, and nobody hangs."""

from __future__ import annotations

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import replicax as rx
from replicax.step import _compat

SHAPE = jax.ShapeDtypeStruct((2,), jnp.float32)


class OfTheUserError(ValueError):
    """A `ValueError`, as jax raises where a program gets other arguments."""


class Host:
    """What a step calls back: it doubles, or raises on one replica."""

    def __init__(self):
        self.culprit = None
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(self, replica, x):
        with self._lock:
            self.calls += 1
        if int(replica) == self.culprit:
            raise OfTheUserError(f"boom of {replica}")
        return 2 * np.asarray(x)


def pure(host, replica, x):
    return jax.pure_callback(host, SHAPE, replica, x)


def with_effects(host, replica, x, *, ordered=False):
    return io_callback(host, SHAPE, replica, x, ordered=ordered)


def in_a_loop(host, replica, x):
    def body(_, x):
        return jax.lax.cond(replica >= 0, lambda x: pure(host, replica, x), jnp.sin, x) / 2

    return 2 * jax.jit(lambda x: jax.lax.fori_loop(0, 2, body, x))(x)


KINDS = {
    "pure": pure,
    "io": with_effects,
    "ordered": functools.partial(with_effects, ordered=True),
    "nested": in_a_loop,
}


def mean_step(strategy, variable, call, host):
    """A step whose replicas meet after the callback."""

    def replica_fn(x):
        ctx = rx.get_replica_context()
        x = call(host, ctx.replica_id_in_sync_group, x)
        variable.assign_add(ctx.all_reduce("mean", x))
        return x

    return lambda x: strategy.run(replica_fn, args=(x,))


@pytest.fixture
def w(strategy):
    with strategy.scope():
        return rx.Variable(jnp.zeros(2), name="w")


@pytest.mark.parametrize("kind", KINDS)
def test_one_replica_raises_and_no_other_hangs(runner, strategy, w, kind):
    host = Host()
    step = runner(mean_step(strategy, w, KINDS[kind], host))
    step(jnp.ones(2))
    held = w.value
    host.culprit = 1

    with pytest.raises(OfTheUserError, match="boom of 1") as caught:
        step(jnp.ones(2))

    (note,) = caught.value.__notes__
    assert "replica 1 of 2" in note
    assert "test_callbacks.py" in note
    np.testing.assert_array_equal(w.value, held)

    host.culprit = None
    step(jnp.ones(2))
    np.testing.assert_array_equal(w.value, held + 2)


def test_a_step_that_failed_is_not_run_again(strategy, w):
    """Though what it raised has a class that jax uses for arguments of another structure."""
    host = Host()
    step = rx.function(mean_step(strategy, w, with_effects, host))
    step(jnp.ones(2))
    host.culprit, host.calls = 0, 0

    with pytest.raises(OfTheUserError):
        step(jnp.ones(2))

    assert host.calls == 2


def test_state_that_was_to_be_donated_is_still_there(strategy):
    host = Host()

    @functools.partial(rx.function, donate="state")
    def step(state, x):
        def replica_fn(state, x):
            ctx = rx.get_replica_context()
            return state + ctx.all_reduce("mean", pure(host, ctx.replica_id_in_sync_group, x))

        return strategy.run(replica_fn, args=(state, x))

    state = step(jnp.zeros(2), jnp.ones(2))
    host.culprit = 1
    with pytest.raises(OfTheUserError):
        step(state, jnp.ones(2))
    host.culprit = None

    np.testing.assert_array_equal(step(state, jnp.ones(2)), [4, 4])


def test_a_callback_for_debugging_raises_beside_a_step_that_goes_well(runner, strategy, w):
    host = Host()

    def call(host, replica, x):
        jax.debug.callback(lambda *args: host(*args) is None, replica, x)
        return x

    step = runner(mean_step(strategy, w, call, host))
    step(jnp.ones(2))
    host.culprit = 1

    with pytest.raises(OfTheUserError, match="boom of 1"):
        step(jnp.ones(2))

    done = 2 if runner.compiled else 1  # replica 1 of the eager runner has not gone on
    np.testing.assert_array_equal(w.value, [done, done])


def test_a_print_that_cannot_be_made_is_told(strategy, w):
    def call(_, replica, x):
        jax.debug.print("{:d}", x)
        return x

    step = rx.function(mean_step(strategy, w, call, None))

    with pytest.raises(TypeError, match="format"):
        step(jnp.ones(2))


def test_prints_still_print(strategy, w, capsys):
    def call(_, replica, x):
        jax.debug.print("replica {}: {}", replica, x[0])
        return x

    rx.function(mean_step(strategy, w, call, None))(jnp.ones(2))

    assert sorted(capsys.readouterr().out.splitlines()) == ["replica 0: 1.0", "replica 1: 1.0"]


def test_a_result_of_another_shape_is_told(strategy, w):
    step = rx.function(mean_step(strategy, w, pure, lambda replica, x: np.ones(3, np.float32)))

    with pytest.raises(rx.errors.InvalidArgumentError, match=r"float32\[3\](.|\n)*float32\[2\]"):
        step(jnp.ones(2))

    np.testing.assert_array_equal(w.value, [0, 0])


def test_a_callback_between_the_runs_of_a_step(strategy, w):
    host = Host()

    @rx.function
    def step(x):
        x = pure(host, 0, x)
        strategy.run(lambda x: w.assign_add(rx.get_replica_context().all_reduce("sum", x)), (x,))

    step(jnp.ones(2))
    host.culprit = 0
    with pytest.raises(OfTheUserError, match="boom of 0"):
        step(jnp.ones(2))

    np.testing.assert_array_equal(w.value, [4, 4])


def test_a_callback_that_comes_with_other_shapes(strategy, w):
    """The program was built without one, and gave its state away."""
    host = Host()
    host.culprit = 1

    def call(host, replica, x):
        return x if len(x) == 2 else pure(host, replica, x[:2])

    step = rx.function(mean_step(strategy, w, call, host))
    step(jnp.ones(2))
    with pytest.raises(OfTheUserError, match="boom of 1"):
        step(jnp.ones(3))

    np.testing.assert_array_equal(w.value, [1, 1])


JITTED = """
import jax
import jax.numpy as jnp
import replicax as rx

strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
culprit = None


def host(replica, x):
    if int(replica) == culprit:
        raise ValueError(f"boom of {replica}")
    return x


def replica_fn(x):
    replica = rx.get_replica_context().replica_id_in_sync_group
    return jax.pure_callback(host, jax.ShapeDtypeStruct((2,), jnp.float32), replica, x)


step = rx.function(lambda x: strategy.run(replica_fn, (x,)))
outer = jax.jit(lambda x: jax.tree.leaves(step(x)))
jax.block_until_ready(outer(jnp.ones(2)))
culprit = 1
try:
    jax.block_until_ready(outer(jnp.ones(2)))
except (jax.errors.JaxRuntimeError, ValueError) as error:  # by how jax dispatched the call
    print("raised:", "boom of 1" in str(error))
"""


def test_a_step_inside_of_a_jitted_function_hides_nothing(run_python):
    """There it is no step that could raise; jax does. What such a program leaves may be broken."""
    ran = run_python(JITTED, REPLICAX_CPU_DEVICES="2")
    assert "raised: True" in ran.stdout, ran.stderr


def test_without_a_strategy():
    def fails(x):
        raise OfTheUserError("boom")

    with pytest.raises(OfTheUserError, match="boom"):
        rx.function(lambda x: jax.pure_callback(fails, SHAPE, x))(jnp.ones(2))


def test_jax_still_has_these_callbacks():
    assert set(_compat.registered_primitives()) > _compat.CALLBACKS

    def everything(x):
        jax.debug.print("{}", x)
        jax.debug.callback(lambda x: None, x)
        return pure(Host(), 0, x) + with_effects(Host(), 0, x)

    equations = _compat.opened(jax.make_jaxpr(everything)(jnp.ones(2)))[0].eqns
    found = {eqn.primitive.name: eqn for eqn in equations if eqn.primitive.name != "add"}
    assert set(found) == _compat.CALLBACKS
    for name in ("io_callback", "pure_callback", "debug_callback"):
        assert callable(found[name].params["callback"])
    assert {"ordered", "partitioned"} <= set(found["debug_print"].params)
