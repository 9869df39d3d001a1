"""State beside the weights, randomness, and replicas that drift: group C of the known pains.

Each test is named after its report and uses the report's numbers. C8 and C9 are about processes
that start from different weights or build different models: here they are shown for the replicas
of one process. Those with several processes are not here, because strategies have one process.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

MOMENTUM = 0.5
ROWS = np.float32([1, 2, 3, 4])


class BatchNorm:
    """Moving statistics of one feature.

    Args:
        synchronized: Whether a step uses the statistics of the global batch. Otherwise each
            replica uses those of its own rows, and has moving statistics of its own.
    """

    def __init__(self, *, synchronized):
        self.synchronized = synchronized
        options = {} if synchronized else {"synchronization": "on_read", "aggregation": "mean"}
        self.mean = rx.Variable(0.0, trainable=False, name="mean", **options)
        self.variance = rx.Variable(1.0, trainable=False, name="variance", **options)
        self.scale = rx.Variable(1.0, name="scale")

    def __call__(self, x, *, training):
        if not training:
            return self._normalized(x, self.mean.value, self.variance.value)
        average = rx.get_replica_context().global_mean if self.synchronized else jnp.mean
        mean = average(x)
        variance = average((x - mean) ** 2)
        for moving, new in [(self.mean, mean), (self.variance, variance)]:
            moving.assign(MOMENTUM * moving.value + (1 - MOMENTUM) * new)
        return self._normalized(x, mean, variance)

    def _normalized(self, x, mean, variance):
        return self.scale * (x - mean) / jnp.sqrt(variance + 1e-3)


def training_step(strategy, model, x):
    def replica_fn(x):
        def loss():
            per_row = (model(x, training=True) - 1.0) ** 2
            return rx.get_replica_context().global_mean(per_row)

        scale = model.scale
        value, gradient = rx.value_and_grad(loss, scale)()
        scale.assign_sub(0.1 * rx.get_replica_context().all_reduce("mean", gradient))
        return value

    return strategy.run(replica_fn, args=(x,))


def shared_out(strategy, rows):
    (batch,) = strategy.distribute_dataset(rows, rx.InputOptions(global_batch_size=len(rows)))
    return batch


def one_device():
    return rx.OneDeviceStrategy("cpu:0")


def test_c1_batch_norm_statistics_of_the_global_batch(runner, strategy):
    with strategy.scope():
        model = BatchNorm(synchronized=True)
    step = runner(lambda x: strategy.run(lambda x: model(x, training=True), args=(x,)))
    step(shared_out(strategy, ROWS))
    assert float(model.mean) == 1.25
    assert float(model.variance) == 1.125


def test_c1_batch_norm_statistics_of_each_replica(runner, strategy):
    with strategy.scope():
        model = BatchNorm(synchronized=False)
    step = runner(lambda x: strategy.run(lambda x: model(x, training=True), args=(x,)))
    step(shared_out(strategy, ROWS))
    assert [float(x) for x in strategy.local_results(model.mean)] == [0.75, 1.75]
    assert float(model.mean) == 1.25  # not replica 0's


def test_c1_statistics_of_each_replica_in_a_mirrored_variable_are_refused(runner, strategy):
    with strategy.scope():
        moving = rx.Variable(0.0, name="moving")
    step = runner(lambda x: strategy.run(lambda x: moving.assign(x.mean()), args=(x,)))
    with pytest.raises(rx.errors.VaryingWriteError, match="`moving`"):
        step(shared_out(strategy, ROWS))


@pytest.mark.parametrize("synchronized", [True, False])
def test_c2_a_reloaded_model_evaluates_alike_on_one_device(strategy, synchronized, tmp_path):
    with strategy.scope():
        model = BatchNorm(synchronized=synchronized)
    step = rx.function(lambda x: training_step(strategy, model, x))
    for _ in range(3):
        step(shared_out(strategy, ROWS))
    rx.checkpoint.Checkpoint(model=model).save(tmp_path / "model")
    statistics = float(model.mean), float(model.variance)
    expected = float(model.scale) * (ROWS - statistics[0]) / np.sqrt(statistics[1] + 1e-3)

    alone = one_device()
    with alone.scope():
        loaded = BatchNorm(synchronized=synchronized)
    rx.checkpoint.Checkpoint(model=loaded).restore(tmp_path / "model").assert_consumed()
    evaluate = rx.function(lambda x: alone.run(lambda x: loaded(x, training=False), args=(x,)))
    np.testing.assert_allclose(evaluate(ROWS), expected, rtol=1e-6)
    assert (float(loaded.mean), float(loaded.variance)) == statistics


def test_c5_synchronized_batch_norm_trains_as_on_one_device(strategy):
    predictions = []
    for one in (one_device(), strategy):
        with one.scope():
            model = BatchNorm(synchronized=True)
        step = rx.function(lambda x, one=one, model=model: training_step(one, model, x))
        step(shared_out(one, ROWS))
        predict = rx.function(
            lambda x, one=one, model=model: one.run(lambda x: model(x, training=False), args=(x,))
        )
        batch = shared_out(one, ROWS)
        predictions.append(one.gather(predict(batch), axis=0))
    np.testing.assert_allclose(predictions[1], predictions[0], rtol=1e-5)


def dropout(x):
    return jax.random.bernoulli(rx.get_replica_context().rng(), 0.5, x.shape)


def test_c6_dropout_differs_between_replicas_and_repeats(strategy):
    step = rx.function(lambda x: strategy.run(dropout, args=(x,)))

    def masks():
        strategy.set_seed(7)
        return [np.stack(strategy.local_results(step(np.zeros(64)))) for _ in range(2)]

    first, second = masks()
    assert (first[0] != first[1]).any()
    assert (first != second).any()  # each step takes another key
    for again, before in zip(masks(), [first, second], strict=True):
        np.testing.assert_array_equal(again, before)


def test_c6_both_runners_draw_the_same_masks(strategy):
    found = []
    for step in (
        lambda x: strategy.run(dropout, args=(x,)),
        rx.function(lambda x: strategy.run(dropout, args=(x,))),
    ):
        strategy.set_seed(7)
        found.append([np.stack(strategy.local_results(step(np.zeros(64)))) for _ in range(3)])
    np.testing.assert_array_equal(*found)


def test_c6_a_new_process_draws_the_same_masks(run_python, strategy):
    program = """
        import jax, numpy as np
        import replicax as rx

        rx.devices.logical(cpu=2)
        strategy = rx.MirroredStrategy()
        strategy.set_seed(7)

        @rx.function
        def step():
            def dropout():
                return jax.random.bernoulli(rx.get_replica_context().rng(), 0.5, (64,))

            return strategy.run(dropout)

        print(np.stack(strategy.local_results(step())).astype(int).ravel().tolist())
        """
    result = run_python(program)
    assert result.returncode == 0, result.stderr
    strategy.set_seed(7)
    here = np.stack(strategy.local_results(strategy.run(dropout, args=(np.zeros(64),))))
    assert result.stdout.strip() == str(here.astype(int).ravel().tolist())


@pytest.mark.parametrize("seed", [None, 7])
def test_c8_replicas_start_from_the_weights_of_replica_0(strategy, seed):
    rng, drawn, made = np.random.default_rng(seed), [], []

    def replica_fn():
        if not made:
            drawn.append(rng.normal(size=3).astype(np.float32))
            weights = rx.Variable(drawn[-1])
            made.append(weights)
        return made[0].value

    seen = strategy.local_results(strategy.run(replica_fn))
    assert len(drawn) == 2
    assert (drawn[0] != drawn[1]).all()
    for value in [*seen, *made[0].values]:
        np.testing.assert_array_equal(value, drawn[0])
    rx.check_replicas_equal(strategy)


def test_c8_unequal_copies_are_found(strategy):
    """JAX accepts an array that is said to be replicated and holds other bits on each device."""
    mesh = strategy.replica_mesh
    parts = [jax.device_put(np.float32([i, 1]), d) for i, d in enumerate(mesh.devices)]
    unequal = jax.make_array_from_single_device_arrays((2,), mesh.mirrored, parts)
    with pytest.raises(rx.errors.ReplicaDivergenceError, match="weights"):
        rx.check_replicas_equal({"weights": unequal})


def dense(units):
    return rx.Variable(np.zeros((4, units), np.float32), name="dense/kernel")


def test_c9_replicas_that_build_other_models_are_refused(strategy):
    def replica_fn():
        dense(2 + rx.get_replica_context().replica_id_in_sync_group)

    with pytest.raises(rx.errors.CollectiveMismatchError) as caught:
        strategy.run(replica_fn)
    message = str(caught.value)
    assert message.count("dense/kernel") == 2
    assert "(4, 2)" in message
    assert "(4, 3)" in message
    assert "test_state.py" in message


def test_c9_a_replica_that_builds_a_layer_more_is_refused(strategy):
    def replica_fn():
        for _ in range(1 + rx.get_replica_context().replica_id_in_sync_group):
            dense(2)

    with pytest.raises(rx.errors.CollectiveMismatchError, match=r"test_state\.py"):
        strategy.run(replica_fn)
