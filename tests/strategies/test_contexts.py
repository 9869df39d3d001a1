from __future__ import annotations

import threading

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


def in_thread(fn):
    """What `fn` returns in a new thread, or what it raises."""
    outcome = []

    def target():
        try:
            outcome.append((fn(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            outcome.append((None, error))

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


# --- outside, in a scope, in a replica ---------------------------------------------------------


def test_outside_of_every_scope_there_is_a_default_strategy_of_one_replica():
    assert not rx.has_strategy()
    assert not rx.in_cross_replica_context()
    assert rx.get_strategy().num_replicas_in_sync == 1
    assert rx.get_strategy() is rx.get_strategy()
    context = rx.get_replica_context()
    assert context.replica_id_in_sync_group == 0
    assert context.num_replicas_in_sync == 1
    assert context.row_mask is None


def test_collectives_of_a_single_replica_are_the_identity():
    context = rx.get_replica_context()
    assert context.all_reduce("sum", 3.0) == 3.0
    mean = context.all_reduce("mean", 3)
    assert (mean, mean.dtype) == (3.0, jnp.float32)
    np.testing.assert_array_equal(context.all_gather({"a": jnp.ones(2)}, 0)["a"], [1, 1])
    np.testing.assert_array_equal(context.broadcast(jnp.ones(2)), [1, 1])
    np.testing.assert_array_equal(context.reduce_scatter("sum", jnp.ones(2)), [1, 1])
    assert context.global_mean(jnp.array([1.0, 3.0])) == 2.0
    assert context.global_sum(jnp.array([1.0, 3.0])) == 4.0
    assert context.merge_call(lambda strategy, x: x + 1, args=(1,)) == 2


def test_in_a_scope_the_context_is_cross_replica(strategy):
    with strategy.scope() as entered:
        assert entered is strategy
        assert rx.has_strategy()
        assert rx.get_strategy() is strategy
        assert rx.in_cross_replica_context()
        assert rx.get_replica_context() is None
    assert not rx.has_strategy()


def test_in_a_replica(run, strategy):
    def replica_fn():
        context = rx.get_replica_context()
        assert rx.get_strategy() is context.strategy is strategy
        assert rx.has_strategy()
        assert not rx.in_cross_replica_context()
        assert context.num_replicas_in_sync == 2
        return context.replica_id_in_sync_group

    ids = strategy.local_results(run(replica_fn))
    assert [int(i) for i in ids] == [0, 1]
    assert not rx.has_strategy()


def test_in_a_merge_function_the_context_is_cross_replica(run, strategy):
    seen = []

    def merge_fn(merging):
        seen.append((merging is strategy, rx.get_strategy() is strategy))
        seen.append((rx.in_cross_replica_context(), rx.get_replica_context() is None))

    run(lambda: rx.get_replica_context().merge_call(merge_fn))
    assert set(seen) == {(True, True)}


def test_a_new_thread_is_in_no_scope(strategy):
    with strategy.scope():
        assert not in_thread(rx.has_strategy)
        assert not in_thread(rx.in_cross_replica_context)
        assert in_thread(lambda: rx.get_replica_context().num_replicas_in_sync) == 1


# --- scopes ------------------------------------------------------------------------------------


def test_the_same_scope_may_be_entered_twice(strategy):
    with strategy.scope():
        with strategy.scope():
            assert rx.get_strategy() is strategy
        assert rx.get_strategy() is strategy


@pytest.mark.parametrize("second", ["other", "default"])
def test_a_second_strategy_is_refused(strategy, other, second):
    second = other if second == "other" else rx.get_strategy()
    with (
        strategy.scope(),
        pytest.raises(rx.errors.MixedStrategiesError, match="Leave the scope of") as caught,
        second.scope(),
    ):
        pass
    assert strategy.name in str(caught.value)
    assert second.name in str(caught.value)


def test_two_threads_may_be_in_scopes_of_two_strategies(strategy, other):
    def enter():
        with other.scope():
            return rx.get_strategy()

    with strategy.scope():
        assert in_thread(enter) is other


def test_after_an_error_inside_the_scope_is_left(strategy):
    with pytest.raises(KeyError), strategy.scope():
        raise KeyError
    assert not rx.has_strategy()


@pytest.mark.parametrize("which", ["own", "other"])
def test_a_scope_inside_run_is_refused(run, strategy, other, which):
    inner = strategy if which == "own" else other

    def replica_fn():
        with inner.scope():
            pass

    with pytest.raises(rx.errors.ContextError, match=r"strategy\.scope.*in replica context"):
        run(replica_fn)


# --- what belongs to the other context ---------------------------------------------------------


CROSS_REPLICA_CALLS = {
    "run": lambda strategy: strategy.run(lambda: 1.0),
    "reduce": lambda strategy: strategy.reduce("mean", 1.0, None),
    "gather": lambda strategy: strategy.gather(jnp.ones(2), 0),
    "distribute_dataset": lambda strategy: strategy.distribute_dataset(np.ones(2)),
    "distribute_values_from_function": lambda strategy: strategy.distribute_values_from_function(
        lambda context: 1.0
    ),
}


@pytest.mark.parametrize("call", CROSS_REPLICA_CALLS)
@pytest.mark.parametrize("which", ["own", "other"])
def test_cross_replica_calls_inside_run_are_refused(run, strategy, other, call, which):
    target = strategy if which == "own" else other
    with pytest.raises(rx.errors.ContextError, match=rf"strategy\.{call}.*in replica context"):
        run(lambda: CROSS_REPLICA_CALLS[call](target))


def test_run_inside_a_merge_function_is_refused(run):
    def merge_fn(strategy):
        return strategy.run(lambda: 1.0)

    with pytest.raises(rx.errors.ContextError, match=r"strategy\.run.*in a merge function"):
        run(lambda: rx.get_replica_context().merge_call(merge_fn))


def test_run_in_the_scope_of_another_strategy_is_refused(runner, strategy, other):
    step = runner(lambda: strategy.run(lambda: 1.0))
    with other.scope(), pytest.raises(rx.errors.MixedStrategiesError, match="Leave the scope"):
        step()


COLLECTIVES = {
    "all_reduce": lambda context: context.all_reduce("sum", 1.0),
    "all_gather": lambda context: context.all_gather(jnp.ones(2), 0),
    "reduce_scatter": lambda context: context.reduce_scatter("sum", jnp.ones(2)),
    "broadcast": lambda context: context.broadcast(1.0),
    "merge_call": lambda context: context.merge_call(lambda strategy: 1.0),
    "global_mean": lambda context: context.global_mean(jnp.ones(2)),
    "global_sum": lambda context: context.global_sum(jnp.ones(2)),
}


@pytest.fixture
def kept(run):
    """A replica context whose run has ended."""
    contexts = []
    run(lambda: contexts.append(rx.get_replica_context()))
    return contexts[0]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_kept_context_cannot_communicate(kept, collective):
    with pytest.raises(rx.errors.ContextError, match="outside of every replica function"):
        COLLECTIVES[collective](kept)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_kept_context_cannot_communicate_in_cross_replica_context(kept, strategy, collective):
    with (
        strategy.scope(),
        pytest.raises(rx.errors.ContextError, match=r"in cross-replica context.*\n.*\n.*reduce"),
    ):
        COLLECTIVES[collective](kept)


def test_a_kept_context_cannot_communicate_in_another_run(kept, run):
    with pytest.raises(rx.errors.ContextError, match="inside the function of another run"):
        run(lambda: kept.all_reduce("sum", 1.0))


def test_a_thread_of_a_replica_cannot_communicate(run):
    def replica_fn():
        context = rx.get_replica_context()
        return in_thread(lambda: context.all_reduce("sum", 1.0))

    with pytest.raises(rx.errors.ContextError, match="outside of every replica function"):
        run(replica_fn)


def test_the_context_of_the_default_strategy_cannot_communicate_in_a_run(run):
    outside = rx.get_replica_context()
    with pytest.raises(rx.errors.ContextError, match="another run"):
        run(lambda: outside.all_reduce("sum", 1.0))


def test_the_replica_id_of_a_kept_compiled_context_is_out_of_reach(strategy):
    contexts = []
    rx.function(lambda: strategy.run(lambda: contexts.append(rx.get_replica_context())))()
    with pytest.raises(rx.errors.ContextError, match="replica_id_in_sync_group"):
        _ = contexts[0].replica_id_in_sync_group


def test_after_a_refused_call_the_next_run_works(run, strategy):
    with pytest.raises(rx.errors.ContextError):
        run(lambda: strategy.run(lambda: 1.0))
    total = run(lambda: rx.get_replica_context().all_reduce("sum", 1.0))
    assert float(total) == 2.0


# --- the default strategy ----------------------------------------------------------------------


def test_the_default_strategy_runs_the_function_once():
    default = rx.get_strategy()
    assert default.run(lambda x, y: x + y, args=(1,), kwargs={"y": 2}) == 3
    assert default.reduce("sum", 3.0, axis=None) == 3.0
    assert default.reduce("sum", jnp.arange(4.0), axis=0) == 6.0
    assert default.gather(3.0, 0) == 3.0
    batches = default.distribute_dataset(np.arange(6.0), rx.InputOptions(global_batch_size=4))
    sums = [default.run(lambda rows: rows.sum(), args=(batch,)) for batch in batches]
    assert [float(x) for x in sums] == [6.0, 9.0]


def test_the_default_strategy_checks_its_arguments():
    with pytest.raises(rx.errors.ArgumentTypeError, match="args"):
        rx.get_strategy().run(lambda: 1, args=3)
