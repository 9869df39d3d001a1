"""Variables in every place of a step give the numbers of one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .models import InPlace, cut, epochs, largest_difference, mirrored, rows, train_on_one_device

MOMENTUM = 0.9


# --- rx.value_and_grad that writes: batch normalisation ----------------------------------------


@jax.jit
def moments(x):
    return jnp.mean(x, axis=0), jnp.mean(x**2, axis=0)


@jax.jit
def normalised_loss(w, mean, square, x, y):
    normal = (x - mean) / jnp.sqrt(square - mean**2 + 1e-3)
    return (normal @ w - y) ** 2


def batch_norm_on_one_device(batches):
    w, mean, losses = jnp.full(3, 0.5), jnp.zeros(3), []

    @jax.jit
    def step(w, mean, x, y):
        m, s = moments(x)
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean(normalised_loss(w, m, s, x, y)))(w)
        return w - 0.01 * gradient, MOMENTUM * mean + (1 - MOMENTUM) * m, loss

    for x, y in batches:
        w, mean, loss = step(w, mean, x, y[:, 0])
        losses.append(float(loss))
    return np.asarray(w), np.asarray(mean), losses


@pytest.mark.parametrize("n", [1, 4])
def test_statistics_written_while_a_gradient_is_taken(runner, n):
    """Batch normalisation over the global batch, with the writes inside `rx.value_and_grad`."""
    strategy, batches = mirrored(n), epochs(cut(rows(16), 8), 6)
    with strategy.scope():
        w = rx.Variable(jnp.full(3, 0.5), name="w")
        mean = rx.Variable(jnp.zeros(3), trainable=False, name="mean")
        count = rx.Variable(0, trainable=False, name="count")

    def replica_step(batch):
        ctx = rx.get_replica_context()
        x, y = batch

        def loss_fn():
            m, s = ctx.all_reduce("mean", moments(x))
            mean.assign(MOMENTUM * mean + (1 - MOMENTUM) * m)
            count.assign_add(1)
            per_row = normalised_loss(w.value, m, s, x, y[:, 0])
            return ctx.global_mean(per_row), {"rows": ctx.global_sum(jnp.ones_like(per_row))}

        (loss, aux), gradients = rx.value_and_grad(loss_fn, {"w": w}, has_aux=True)()
        w.assign_sub(0.01 * ctx.all_reduce("mean", gradients)["w"])
        return loss, aux["rows"], mean.value

    step = runner(lambda batch: strategy.run(replica_step, args=(batch,)))
    results = [step(batch) for batch in strategy.distribute_dataset(batches)]
    expected_w, expected_mean, expected_losses = batch_norm_on_one_device(batches)
    np.testing.assert_allclose(np.asarray(w), expected_w, atol=1e-6)
    np.testing.assert_allclose(np.asarray(mean), expected_mean, atol=1e-6)
    np.testing.assert_allclose(results[-1][2], expected_mean, atol=1e-6)
    assert [float(loss) for loss, _, _ in results] == pytest.approx(expected_losses, rel=2e-6)
    assert [float(total) for _, total, _ in results] == [8.0] * 6
    assert int(count) == 6


@pytest.mark.parametrize("has_aux", [False, True])
def test_gradients_keep_the_structure_of_the_variables(runner, has_aux):
    strategy = mirrored(2)
    with strategy.scope():
        a, b = rx.Variable(2.0), rx.Variable(jnp.array([1.0, 3.0]))

    def replica_fn(x):
        def loss_fn(scale):
            value = a.value**2 * scale + jnp.sum(b.value) * a.value * scale
            return (value, value * 2) if has_aux else value

        return rx.value_and_grad(loss_fn, {"a": a, "rest": [b]}, has_aux=has_aux)(x)

    value, gradients = runner(lambda: strategy.run(replica_fn, args=(3.0,)))()
    if has_aux:
        value, aux = value
        assert float(aux) == 72.0
    assert float(value) == 36.0
    assert float(gradients["a"]) == 24.0  # (2 a + sum b) scale
    np.testing.assert_array_equal(gradients["rest"][0], [6.0, 6.0])


@pytest.mark.parametrize("argnums", [0, 1, -1, (0, 1)])
def test_gradients_of_arguments(runner, argnums):
    strategy = mirrored(2)
    with strategy.scope():
        calls = rx.Variable(0)

    def loss_fn(x, y):
        calls.assign_add(1)
        return jnp.sum(x**2 * y)

    def replica_fn(x, y):
        return rx.value_and_grad(loss_fn, argnums=argnums)(x, y)

    x, y = jnp.array([1.0, 2.0]), jnp.array([3.0, 5.0])
    value, gradients = runner(lambda: strategy.run(replica_fn, args=(x, y)))()
    expected = jax.grad(lambda x, y: jnp.sum(x**2 * y), argnums=argnums)(x, y)
    assert float(value) == 23.0
    assert largest_difference(gradients, expected) == 0.0
    assert int(calls) == 1


def test_a_gradient_within_a_gradient(runner):
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(2.0)

    def replica_fn():
        def first():
            return rx.value_and_grad(lambda: w.value**4, [w])()[1][0]

        return rx.value_and_grad(first, [w])()

    value, (second,) = runner(lambda: strategy.run(replica_fn))()
    assert (float(value), float(second)) == (32.0, 48.0)


def test_a_write_is_seen_by_what_follows_in_the_step(runner):
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(1.0)

    def replica_fn():
        w.assign_add(1.0)
        _, (gradient,) = rx.value_and_grad(lambda: w.value**2, [w])()
        w.assign(gradient)
        return w.value

    def step():
        first = strategy.run(replica_fn)
        w.assign_add(first)
        return first, strategy.run(replica_fn)

    first, second = runner(step)()
    assert (float(first), float(second), float(w)) == (4.0, 18.0, 18.0)


# --- where a step is called ------------------------------------------------------------------


def counting_step(strategy, start=0.0):
    with strategy.scope():
        total = rx.Variable(start, name="total")

    def replica_step(x):
        total.assign_add(rx.get_replica_context().global_sum(x))
        return total.value

    return total, lambda x: strategy.run(replica_step, args=(x,))


def share_out(strategy, values):
    (batch,) = strategy.distribute_dataset([np.asarray(values, np.float32)])
    return batch


def test_a_step_counts_once_inside_and_outside_of_the_scope(runner):
    strategy = mirrored(2)
    total, step = counting_step(strategy)
    step, batch = runner(step), share_out(strategy, [1, 2, 3])
    values = [float(step(batch))]
    with strategy.scope():
        values.append(float(step(batch)))
    values.append(float(step(batch)))
    assert values == [6.0, 12.0, 18.0]
    assert float(total) == 18.0


def test_a_compiled_function_inside_another():
    strategy = mirrored(2)
    total, step = counting_step(strategy)
    inner, batch = rx.function(step), share_out(strategy, [1, 2, 3])

    @rx.function
    def outer(batch):
        inner(batch)
        return inner(batch) * 10

    assert float(outer(batch)) == 120.0
    assert float(inner(batch)) == 18.0  # and it still works by itself
    assert float(outer(batch)) == 300.0
    assert float(total) == 30.0


def test_a_compiled_function_inside_a_replica():
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(3.0)
    twice = rx.function(lambda x: w.value * x)
    for wrap in (rx.function, lambda step: step):
        step = wrap(lambda x: strategy.run(lambda x: twice(x) + 1, args=(x,)))
        parts = strategy.local_results(step(rx.PerReplica([1.0, 2.0])))
        assert [float(part) for part in parts] == [4.0, 7.0]


# --- traced again ----------------------------------------------------------------------------


def test_changing_shapes_trace_again_and_keep_the_variable(runner):
    strategy = mirrored(4)
    total, step = counting_step(strategy)
    step, expected = runner(step), 0.0
    for count in (8, 4, 7, 8, 1, 12, 7, 4):
        values = np.arange(1.0, count + 1)
        expected += values.sum()
        assert float(step(share_out(strategy, values))) == expected
    assert float(total) == expected


def test_changing_dtypes_and_structures_trace_again():
    strategy = mirrored(2)
    step = rx.function(lambda tree: strategy.run(lambda tree: jax.tree.map(double, tree), (tree,)))
    assert step(jnp.int32(3)).dtype == jnp.int32
    assert step(jnp.float32(3)).dtype == jnp.float32
    assert float(step({"x": jnp.float32(4)})["x"]) == 8.0
    assert [float(x) for x in step([1.0, jnp.float32(2)])] == [2.0, 4.0]
    assert int(step(jnp.int32(5))) == 10


def double(x):
    return x * 2


def test_variables_that_only_a_later_trace_uses():
    """Each of them must be read and written by the programs that know it, and no other."""
    strategy = mirrored(2)
    with strategy.scope():
        first, second, third = (rx.Variable(float(i), name=f"v{i}") for i in range(3))

    def replica_step(x):
        if x.shape == (1,):
            first.assign_add(1.0)
            return first.value
        if x.shape == (2,):
            second.assign_add(first.value)
            return second.value
        third.assign_add(second.value)
        return third.value

    step = rx.function(lambda x: strategy.run(replica_step, args=(x,)))
    eager = [0.0, 1.0, 2.0]
    for length in (1, 2, 3, 1, 3, 2, 1, 1, 3, 2):
        i = length - 1
        eager[i] += eager[i - 1] if i else 1.0
        read = float(step(jnp.zeros(length)))
        assert read == eager[i]
        assert [float(v) for v in (first, second, third)] == eager


def test_a_variable_made_after_the_first_trace():
    strategy = mirrored(2)
    variables = []

    def make():
        with strategy.scope():
            variables.append(rx.Variable(10.0 * len(variables) + 1.0))

    @rx.function
    def step(x):
        def replica_step(x):
            for variable in variables:
                variable.assign_add(jnp.sum(x))

        strategy.run(replica_step, args=(x,))

    make()
    step(jnp.ones(1))
    make()
    step(jnp.ones(2))  # another shape: traced with both
    assert [float(v) for v in variables] == [4.0, 13.0]
    step(jnp.ones(2))
    assert [float(v) for v in variables] == [6.0, 15.0]


def test_static_arguments_choose_the_program(runner):
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(1.0)

    def step(mode, x, power=1):
        def replica_step(x):
            if mode == "add":
                w.assign_add(x**power)
            else:
                w.assign(w.value * x**power)
            return w.value

        return strategy.run(replica_step, args=(x,))

    step = runner(step, static_argnames=("mode", "power"))
    assert float(step("add", 2.0)) == 3.0
    assert float(step("multiply", 2.0)) == 6.0
    assert float(step("add", 2.0, power=3)) == 14.0
    assert float(step("multiply", 2.0, 2)) == 56.0
    assert float(step(mode="add", x=1.0)) == 57.0


def test_static_arguments_beside_donated_ones():
    """The donated one is found by its name, wherever static ones stand; equal numbers of
    different types are different values."""
    step = rx.function(
        lambda scale, state, row, shift=0: (state * scale + row + shift, row),
        static_argnames=("scale", "shift"),
        donate="state",
    )
    state, row = jnp.arange(3), jnp.ones(3, jnp.int32)
    result, _ = step(1, state, row)
    assert state.is_deleted()
    assert not row.is_deleted()
    assert result.dtype == jnp.int32
    result, _ = step(1.0, jnp.arange(3), row, 2)
    assert result.dtype == jnp.float32
    np.testing.assert_array_equal(result, [3.0, 4.0, 5.0])
    assert step(True, jnp.arange(3), row)[0].dtype == jnp.int32
    assert "f32[3]" in step.lower(1.0, jnp.arange(3), row).as_text("hlo")


# --- several strategies ----------------------------------------------------------------------


def test_strategies_take_turns(runner):
    """Their steps, variables and programs do not meet."""
    counters = [
        (strategy, *counting_step(strategy))
        for strategy in (mirrored(1), mirrored(2), mirrored(8), rx.OneDeviceStrategy("cpu:3"))
    ]
    steps = [runner(step) for _, _, step in counters]
    for turn in range(1, 4):
        for (strategy, total, _), step in zip(counters, steps, strict=True):
            assert float(step(share_out(strategy, [1, 2, 3, 4, 5]))) == 15.0 * turn
            assert float(total) == 15.0 * turn


def test_one_function_on_the_strategy_in_force(runner):
    """A step that asks for the strategy runs on that of each scope."""
    totals = {}
    for strategy in (mirrored(2), mirrored(3), rx.OneDeviceStrategy("cpu:1")):
        totals[strategy], _ = counting_step(strategy)

    def step(x):
        strategy = rx.get_strategy()

        def replica_step(x):
            totals[strategy].assign_add(rx.get_replica_context().global_sum(x))
            return totals[strategy].value

        return strategy.run(replica_step, args=(x,))

    step = runner(step)
    for turn in (1, 2):
        for strategy in totals:
            with strategy.scope():
                value = step(share_out(strategy, [1, 2, 3, 4, 5, 6]))
            assert float(value) == 21.0 * turn


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_one_device_strategy_trains_as_one_device(compiled):
    batches = epochs(cut(rows(20), 8), 6)
    strategy = rx.OneDeviceStrategy("cpu:2")
    weights, losses = InPlace("adam", strategy, compiled=compiled).train(batches)
    expected, expected_losses = train_on_one_device("adam", batches)
    assert largest_difference(weights, expected) <= 1e-6
    assert losses == pytest.approx(expected_losses, rel=1e-6)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_without_a_strategy_a_step_trains_as_one_device(compiled):
    """The same step, unchanged, outside of every scope."""
    batches, strategy = epochs(cut(rows(20), 8), 6), rx.get_strategy()
    assert not rx.has_strategy()
    w = rx.Variable(jnp.full((3, 2), 0.5))

    def replica_step(batch):
        ctx = rx.get_replica_context()
        x, y = batch

        def loss_fn():
            return ctx.global_mean(jnp.sum((x @ w.value - y) ** 2, axis=-1))

        loss, gradients = rx.value_and_grad(loss_fn, [w])()
        w.assign_sub(0.01 * ctx.all_reduce("mean", gradients)[0])
        return loss

    def step(batch):
        return strategy.reduce("mean", strategy.run(replica_step, args=(batch,)), axis=None)

    step = rx.function(step) if compiled else step
    losses = [float(step(batch)) for batch in strategy.distribute_dataset(batches)]

    expected, expected_losses = jnp.full((3, 2), 0.5), []
    compute = jax.jit(
        jax.value_and_grad(lambda w, x, y: jnp.mean(jnp.sum((x @ w - y) ** 2, axis=-1)))
    )
    for x, y in batches:
        loss, gradient = compute(expected, x, y)
        expected, expected_losses = expected - 0.01 * gradient, [*expected_losses, float(loss)]
    np.testing.assert_allclose(np.asarray(w), expected, atol=1e-6)
    assert losses == pytest.approx(expected_losses, rel=1e-6)
