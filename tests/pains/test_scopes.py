"""Scopes, contexts, variables and devices: group E of the known pains.

Each test is named after its report and uses the report's numbers. E9 is about processes: here it
is shown for the replicas of one process, because strategies have one process.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

# --- E1: what is made outside of the scope -------------------------------------------------------

SGD = optax.sgd(0.1, momentum=0.9)


def train(strategy, w, state, x):
    def replica_fn(x):
        gradient = rx.get_replica_context().all_reduce("mean", 2 * (w - x))
        values = jax.tree.map(lambda v: v.value, state)
        change, new = SGD.update(gradient, values)
        w.assign_add(change)
        jax.tree.map(lambda v, value: v.assign(value), state, new)

    return strategy.run(replica_fn, args=(x,))


@pytest.mark.parametrize("outside", ["optimizer", "model"])
def test_e1_variables_made_outside_of_the_scope_are_named(runner, strategy, outside):
    def model():
        return rx.Variable(1.0, name="model/w")

    def optimizer():
        return jax.tree.map(lambda m: rx.Variable(m, name="momentum"), SGD.init(jnp.float32(0)))

    if outside == "optimizer":
        state = optimizer()
    else:
        w = model()
    with strategy.scope():
        if outside == "optimizer":
            w = model()
        else:
            state = optimizer()
    step = runner(lambda x: train(strategy, w, state, x))
    with pytest.raises(rx.errors.MixedStrategiesError) as caught:
        step(rx.PerReplica([1.0, 3.0]))
    message = str(caught.value)
    assert ("`momentum`" if outside == "optimizer" else "`model/w`") in message
    assert strategy.name in message
    assert "with strategy.scope():" in message
    assert float(w) == 1.0


def test_e1_functional_state_made_outside_of_the_scope_works(runner, strategy):
    """Plain arrays belong to no strategy: model and optimizer may be made anywhere."""
    params = jnp.float32(1)
    state = SGD.init(params)

    def step(params, state, x):
        def replica_fn(params, state, x):
            gradient = rx.get_replica_context().all_reduce("mean", 2 * (params - x))
            change, state = SGD.update(gradient, state)
            return optax.apply_updates(params, change), state

        return strategy.run(replica_fn, args=(params, state, x))

    params, state = runner(step)(params, state, rx.PerReplica([1.0, 3.0]))
    assert float(params) == pytest.approx(1.2)


def test_e1_restore_outside_of_the_scope_works(strategy, tmp_path):
    path = tmp_path / "model"
    with strategy.scope():
        w = rx.Variable([1.0, 2.0], name="w")
        rx.checkpoint.Checkpoint(w=w).save(path)
    w.assign(jnp.zeros(2))
    rx.checkpoint.Checkpoint(w=w).restore(path)
    assert [value.tolist() for value in w.values] == [[1.0, 2.0]] * 2
    strategy.run(lambda: w.assign_add(jnp.ones(2)))
    np.testing.assert_array_equal(w, [2, 3])


def test_e1_the_step_may_be_called_in_and_outside_of_the_scope(runner, strategy):
    with strategy.scope():
        w = rx.Variable(1.0)
    step = runner(lambda: strategy.run(lambda: w.assign_add(1.0)))
    step()
    with strategy.scope():
        step()
    step()
    assert float(w) == 4.0


# --- E2: writes in replica context ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("sum", 4.0), ("mean", 2.0), ("only_first_replica", 1.0)]
)
def test_e2_the_aggregation_says_what_a_write_on_each_replica_means(
    run, strategy, aggregation, expected
):
    with strategy.scope():
        v = rx.Variable(0.0, aggregation=aggregation)
    run(v.assign, rx.PerReplica([1.0, 3.0]))
    assert [float(x) for x in v.values] == [expected, expected]


def test_e2_without_aggregation_the_variable_is_named(run, strategy):
    with strategy.scope():
        v = rx.Variable(0.0, name="moving_mean")
    with pytest.raises(rx.errors.VaryingWriteError, match=r"`moving_mean`(.|\n)*aggregation="):
        run(v.assign, rx.PerReplica([1.0, 3.0]))
    assert float(v) == 0.0


# --- E3: an update inside a conditional ----------------------------------------------------------


def conditional_update(w, condition, x):
    """`w += all_reduce(x)` if the condition holds, as both runners write it."""
    ctx = rx.get_replica_context()
    if isinstance(condition, jax.core.Tracer):
        total = jax.lax.cond(condition, lambda x: ctx.all_reduce("sum", x), jnp.zeros_like, x)
        w.assign_add(total)
    elif condition:
        w.assign_add(ctx.all_reduce("sum", x))


@pytest.mark.parametrize("holds", [True, False])
def test_e3_a_condition_that_is_equal_everywhere(run, strategy, holds):
    with strategy.scope():
        w = rx.Variable(0.0, name="w")

    def replica_fn(x):
        total = rx.get_replica_context().all_reduce("sum", x)
        conditional_update(w, (total > 0) == holds, x)

    run(replica_fn, rx.PerReplica([1.0, 3.0]))
    assert [float(value) for value in w.values] == [4.0 if holds else 0.0] * 2


def test_e3_a_condition_that_differs_is_refused(run, runner, strategy):
    with strategy.scope():
        w = rx.Variable(0.0, name="w")
    expected = (
        rx.errors.VaryingControlFlowError if runner.compiled else rx.errors.CollectiveMismatchError
    )
    with pytest.raises(expected, match=r"test_scopes\.py"):
        run(lambda x: conditional_update(w, x > 2, x), rx.PerReplica([1.0, 3.0]))
    assert float(w) == 0.0


def test_e3_skipping_an_update_everywhere(run, strategy):
    """The usual case: no update where a gradient is not finite."""
    with strategy.scope():
        w = rx.Variable(1.0, name="w")

    def replica_fn(x):
        gradient = rx.get_replica_context().all_reduce("mean", x)
        w.assign(jnp.where(jnp.isfinite(gradient), w - gradient, w.value))

    run(replica_fn, rx.PerReplica([1.0, jnp.inf]))
    assert float(w) == 1.0
    run(replica_fn, rx.PerReplica([1.0, 3.0]))
    assert float(w) == -1.0


# --- E4: a reloaded model runs on all devices ----------------------------------------------------


def test_e4_a_model_loaded_in_scope_runs_on_all_devices(runner, strategy, tmp_path):
    with strategy.scope():
        w = rx.Variable([1.0, 2.0], name="w")
    strategy.run(lambda: w.assign_add(jnp.ones(2)))
    rx.checkpoint.Checkpoint(w=w).save(tmp_path / "model")

    four = rx.MirroredStrategy([f"cpu:{i}" for i in range(4)])
    with four.scope():
        loaded = rx.Variable([0.0, 0.0], name="w")
        rx.checkpoint.Checkpoint(w=loaded).restore(tmp_path / "model")
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    (batch,) = four.distribute_dataset(rows, rx.InputOptions(global_batch_size=8))
    step = runner(lambda x: four.run(lambda x: x * loaded, args=(x,)))
    result = step(batch)
    devices = {next(iter(x.devices())) for x in four.local_results(result)}
    assert devices == set(jax.devices()[:4])
    assert [x.shape for x in four.local_results(result)] == [(2, 2)] * 4
    np.testing.assert_array_equal(four.gather(result, axis=0), rows * np.float32([2, 3]))
    assert {next(iter(x.devices())) for x in loaded.values} == devices


# --- E7 and E9: gather ---------------------------------------------------------------------------

UNEVEN = rx.PerReplica([np.array([0, 1]), np.array([2, 3, 4])])


def test_e7_all_gather_of_unequal_lengths(strategy):
    seen = []

    def replica_fn(x):
        seen.append(rx.get_replica_context().all_gather(x, axis=0))

    strategy.run(replica_fn, args=(UNEVEN,))
    assert [x.tolist() for x in seen] == [[0, 1, 2, 3, 4]] * 2


def test_e7_gather_of_unequal_lengths(strategy):
    result = strategy.gather(UNEVEN, axis=0)
    assert result.tolist() == [0, 1, 2, 3, 4]
    assert [x.tolist() for x in strategy.local_results(result)] == [[0, 1, 2, 3, 4]] * 2


def test_e7_gather_of_the_padded_remainder_of_a_compiled_step(runner, strategy):
    (batch,) = strategy.distribute_dataset(np.arange(5), rx.InputOptions(global_batch_size=5))
    step = runner(lambda x: strategy.run(lambda x: x * 1, args=(x,)))
    assert strategy.gather(step(batch), axis=0).tolist() == [0, 1, 2, 3, 4]


def test_e7_unequal_lengths_given_to_a_compiled_step_are_named(strategy):
    step = rx.function(lambda x: strategy.gather(x, axis=0))
    with pytest.raises(rx.errors.InvalidArgumentError) as caught:
        step(UNEVEN)
    message = str(caught.value)
    assert "(2,)" in message
    assert "(3,)" in message
    assert "What to do" in message


@pytest.mark.parametrize("n", [1, 2])
def test_e9_gather_has_one_rank_for_any_number_of_replicas(runner, n):
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(n)])
    x = strategy.distribute_values_from_function(lambda context: np.arange(10.0))

    def replica_fn(x):
        ctx = rx.get_replica_context()
        return ctx.all_gather(x[None], axis=0), ctx.all_gather(x, axis=0)

    stacked, joined = runner(lambda x: strategy.run(replica_fn, args=(x,)))(x)
    assert (stacked.shape, joined.shape) == ((n, 10), (n * 10,))
    assert strategy.gather(x, axis=0).shape == (n * 10,)
