"""`rx.precision.LossScale`: one decision for all replicas."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx


def made(strategy, **options):
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
        optimizer = rx.Optimizer(optax.sgd(0.5, momentum=0.5), [w])
        return w, optimizer, rx.precision.LossScale(8.0, growth_steps=2, **options)


def run_steps(runner, strategy, scale, optimizer, gradients):
    """The scales after steps whose scaled gradients on two replicas are given."""

    def replica_step(gradient):
        mean = rx.get_replica_context().all_reduce("mean", gradient)
        return scale.apply_gradients(optimizer, [mean])

    step = runner(lambda gradient: strategy.run(replica_step, args=(gradient,)))
    seen = []
    for gradient in gradients:
        applied = step(rx.PerReplica([np.float32(x) for x in gradient]))
        seen.append((bool(applied), float(scale.value)))
    return seen


def test_an_overflow_on_one_replica_makes_all_skip(runner, strategy):
    w, optimizer, scale = made(strategy)

    seen = run_steps(
        runner, strategy, scale, optimizer, [(8, 8), (np.inf, 8), (8, 0), (8, 8), (np.nan, 1)]
    )

    assert seen == [(True, 8), (False, 4), (True, 4), (True, 8), (False, 4)]
    # By hand: gradients 1, 1, 2 with momentum; what was skipped left no trace.
    trace, expected = 0.0, 1.0
    for gradient in (1.0, 1.0, 2.0):
        trace = 0.5 * trace + gradient
        expected -= 0.5 * trace
    assert float(w) == expected
    rx.check_replicas_equal((w, scale.scale, *jax.tree.leaves(optimizer.state)))


def test_a_fixed_scale_skips_and_stays(runner, strategy):
    w, optimizer, scale = made(strategy, is_dynamic=False)

    seen = run_steps(runner, strategy, scale, optimizer, [(8, 8), (np.inf, 8), (8, 8), (8, 8)])

    assert seen == [(True, 8), (False, 8), (True, 8), (True, 8)]
    assert np.isfinite(w.value)


def test_gradients_of_one_replica_are_refused(runner, strategy):
    _, optimizer, scale = made(strategy)
    step = runner(
        lambda x: strategy.run(lambda x: scale.apply_gradients(optimizer, [x]), args=(x,))
    )

    with pytest.raises(rx.errors.VaryingWriteError, match="the gradient of `w`"):
        step(rx.PerReplica([np.float32(1.0), np.float32(np.inf)]))


def test_the_defaults_are_the_usual_ones():
    scale = rx.precision.LossScale()
    state = rx.precision.LossScaleState.create()

    assert float(scale.value) == float(state.scale) == 2.0**15
    assert scale.growth_steps == state.growth_steps == 2000


def test_functional_style_makes_the_same_decisions(strategy):
    tx = optax.sgd(0.5)

    @rx.function(donate="state")
    def step(state, gradient):
        def replica_step(state, gradient):
            w, slots, scale = state
            mean = rx.get_replica_context().all_reduce("mean", gradient)
            finite = rx.precision.all_finite(mean)
            updates, new_slots = tx.update(scale.divide(mean), slots, w)
            new = (optax.apply_updates(w, updates), new_slots)
            return (*rx.precision.choose(finite, new, (w, slots)), scale.adjusted(finite)), finite

        return strategy.run(replica_step, args=(state, gradient))

    start = rx.precision.LossScaleState.create(8.0, growth_steps=2)
    state = (jnp.float32(1.0), tx.init(jnp.float32(1.0)), start)
    seen = []
    for gradient in [(8, 8), (8, np.inf), (8, 0), (8, 8)]:
        state, finite = step(state, rx.PerReplica([np.float32(x) for x in gradient]))
        seen.append((bool(finite), float(state[2].scale)))

    assert seen == [(True, 8), (False, 4), (True, 4), (True, 8)]
    assert float(state[0]) == 1.0 - 0.5 * (1 + 1 + 2)


def test_the_scale_stays_in_its_range():
    state = rx.precision.LossScaleState.create(1.0, growth_steps=1)
    assert float(state.adjusted(False).scale) == 1.0
    state = dataclasses.replace(state, scale=jnp.float32(2.0**127))
    assert float(state.adjusted(True).scale) == 2.0**127
    assert float(rx.precision.LossScaleState.create(0.25).adjusted(False).scale) == 0.25


def test_a_checkpoint_holds_the_scale(strategy, tmp_path):
    _, _, scale = made(strategy)
    with strategy.scope():
        scale.scale.assign(64.0)
        other = rx.precision.LossScale()
    rx.checkpoint.Checkpoint(scale=scale).save(tmp_path / "saved")
    rx.checkpoint.Checkpoint(scale=other).restore(tmp_path / "saved")

    assert float(other.value) == 64.0


@pytest.mark.parametrize("scale", [0, -1.0, np.inf, True, "8"])
def test_scales_that_are_none_are_refused(scale):
    with pytest.raises(rx.errors.InvalidArgumentError, match="above zero"):
        rx.precision.LossScale(scale)


@pytest.mark.parametrize("growth_steps", [0, 1.5, True])
def test_steps_that_are_none_are_refused(growth_steps):
    with pytest.raises(rx.errors.InvalidArgumentError, match="growth_steps"):
        rx.precision.LossScaleState.create(growth_steps=growth_steps)
