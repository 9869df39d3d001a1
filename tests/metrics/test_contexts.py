"""Where metrics may be made, updated, read and reset."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

ROWS = rx.PerReplica([np.float32([1.0, 2.0]), np.float32([6.0])])
EVEN = rx.PerReplica([np.float32([1.0, 2.0]), np.float32([4.0, 5.0])])


@pytest.fixture
def metric(strategy):
    with strategy.scope():
        return rx.metrics.Mean("loss")


def test_a_result_in_replica_context_is_that_of_all_replicas(run, metric):
    def replica_fn(x):
        metric.update_state(x)
        return metric.result()

    found = run(replica_fn, EVEN)
    assert isinstance(found, jax.Array)  # mirrored
    assert float(found) == 3.0
    assert float(metric.result()) == 3.0


def test_a_result_in_a_merge_call_too(run, metric):
    def replica_fn(x):
        metric.update_state(x)
        return rx.get_replica_context().merge_call(lambda strategy: metric.result())

    assert float(run(replica_fn, EVEN)) == 3.0


def test_a_result_across_replicas_inside_of_a_step(runner, strategy, metric):
    def step(x):
        strategy.run(metric.update_state, args=(x,))
        return metric.result()

    step = runner(step)
    assert [float(step(x)) for x in (EVEN, EVEN)] == [3.0, 3.0]


def test_a_replica_may_hold_other_rows_than_another(strategy, metric):
    strategy.run(metric.update_state, args=(ROWS,))
    assert float(metric.result()) == 3.0


def test_a_replica_resets_its_own_rows(run, metric):
    def replica_fn(x):
        metric.update_state(x * 100)
        metric.reset_state()
        metric.update_state(x)

    run(replica_fn, EVEN)
    run(replica_fn, EVEN)
    assert float(metric.result()) == 3.0
    assert [float(copy[0]) for copy in metric.count.values] == [2.0, 2.0]


def test_a_step_may_reset(runner, strategy, metric):
    def step(x):
        metric.reset_state()
        strategy.run(metric.update_state, args=(x,))
        return metric.result()

    step = runner(step)
    assert [float(step(x)) for x in (EVEN, EVEN)] == [3.0, 3.0]
    assert float(metric.count.value[0]) == 4.0


def test_an_update_across_replicas_is_refused(runner, strategy, metric):
    step = runner(metric.update_state)
    with pytest.raises(rx.errors.ContextError, match=r"`loss.update_state` was called in cross"):
        step(np.ones(3))
    with strategy.scope(), pytest.raises(rx.errors.ContextError, match=strategy.name):
        step(np.ones(3))
    assert float(metric.result()) == 0.0


def test_a_result_in_update_is_refused(runner, strategy, metric):
    step = runner(lambda: strategy.extended.update(metric.total, lambda v: metric.result()))
    with pytest.raises(rx.errors.ContextError, match=r"`loss.result` .* `extended.update`"):
        step()


def test_a_metric_of_no_strategy_is_refused_in_a_replica(run):
    metric = rx.metrics.Mean("plain")
    with pytest.raises(rx.errors.MixedStrategiesError, match=r"`plain.total`.* outside of the"):
        run(metric.update_state, EVEN)
    with pytest.raises(rx.errors.MixedStrategiesError, match=r"`plain.total`.* outside of the"):
        run(metric.result)


def test_a_metric_of_another_strategy_is_refused(run, other):
    with other.scope():
        metric = rx.metrics.Mean("theirs")
    with pytest.raises(rx.errors.MixedStrategiesError, match=f"`theirs.total` of {other.name}"):
        run(metric.update_state, EVEN)


def test_a_metric_of_no_strategy_counts_on_one_device(runner):
    metric = rx.metrics.Mean()
    step = runner(metric.update_state)
    for x in (np.ones(3), np.zeros(1)):
        step(x)
    assert float(metric.result()) == 0.75


def test_a_per_replica_value_is_no_array_of_rows():
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"PerReplica.*which is no array"):
        rx.metrics.Mean().update_state(EVEN)


def test_a_value_that_was_averaged_before_is_refused_in_a_replica(run, metric):
    with pytest.raises(rx.errors.InvalidArgumentError, match="given a scalar"):
        run(lambda x: metric.update_state(x.mean()), EVEN)
    assert float(metric.result()) == 0.0


def test_values_that_are_not_the_rows_of_a_padded_batch_are_refused(strategy, metric):
    step = rx.function(
        lambda x: strategy.run(lambda x: metric.update_state(jnp.tile(x, 2)), args=(x,))
    )
    (batch,) = strategy.distribute_dataset([np.arange(3.0)])
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"4 `values`, but .* 2 rows"):
        step(batch)


def test_an_eager_step_has_counted_its_rows(strategy, metric):
    """The rows of a remainder may not go uncounted: a metric counts them."""
    (batch,) = strategy.distribute_dataset([np.arange(3.0)])
    strategy.run(metric.update_state, args=(batch,))
    assert float(metric.result()) == 1.0


def test_an_update_in_a_loss_function(strategy, metric):
    def replica_fn(x):
        def loss(w):
            per_row = w * x
            metric.update_state(per_row)
            return rx.get_replica_context().global_mean(per_row)

        return rx.value_and_grad(loss)(jnp.float32(2.0))[0]

    step = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))
    assert float(step(EVEN)) == 6.0
    assert float(metric.result()) == 6.0


def test_it_may_be_made_in_a_replica_and_in_a_first_step(strategy):
    class Model:
        metric = None

        @rx.function
        def step(self, x):
            if self.metric is None:
                with strategy.scope():
                    self.metric = rx.metrics.Mean()
            strategy.run(self.metric.update_state, args=(x,))

        def replica_fn(self, x):
            self.metric = rx.metrics.Mean() if self.metric is None else self.metric
            self.metric.update_state(x)

    compiled, eager = Model(), Model()
    for _ in range(2):
        compiled.step(EVEN)
        strategy.run(eager.replica_fn, args=(EVEN,))
    for model in (compiled, eager):
        assert float(model.metric.result()) == 3.0
        assert float(model.metric.count.value[0]) == 8.0


def test_a_copy_counts_for_itself(strategy, metric):
    strategy.run(metric.update_state, args=(EVEN,))
    copied = copy.deepcopy(metric)
    strategy.run(metric.update_state, args=(ROWS,))
    assert [float(one.count.value[0]) for one in (copied, metric)] == [4.0, 7.0]
