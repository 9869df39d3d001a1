from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

IDS = rx.PerReplica([1.0, 5.0])


@pytest.fixture
def merge(run):
    """`merge(merge_fn, *args)`: a run whose replicas meet in one merge call."""

    def call(merge_fn, *args, **kwargs):
        return run(lambda *a: rx.get_replica_context().merge_call(merge_fn, a, kwargs), *args)

    return call


@pytest.fixture
def w(strategy):
    with strategy.scope():
        return rx.Variable(1.0, name="w")


def test_arguments_arrive_per_replica(merge):
    def merge_fn(strategy, x, *, y):
        assert isinstance(x, rx.PerReplica)
        return strategy.reduce("sum", x, axis=None) + y

    assert float(merge(merge_fn, IDS, y=1.0)) == 7.0


def test_arrays_that_are_equal_arrive_per_replica_too(merge):
    assert float(merge(lambda strategy, x: strategy.reduce("sum", x, None), jnp.float32(2))) == 4.0


@pytest.mark.parametrize("value", [np.float32(2.0), 2.0])
def test_numbers(run, value):
    def replica_fn():
        context = rx.get_replica_context()
        return context.merge_call(lambda s, x: s.reduce("mean", x, axis=None), args=(value,))

    assert float(run(replica_fn)) == 2.0


def test_numpy_arrays(run):
    def replica_fn():
        context = rx.get_replica_context()
        return context.merge_call(lambda s, x: s.reduce("sum", x, 0), args=[np.ones(3)])

    assert float(run(replica_fn)) == 6.0


def test_trees(run):
    def merge_fn(strategy, tree):
        total = strategy.reduce("sum", tree, axis=None)
        return {"sum": total["a"], "tree": tree, "none": None}

    def check(tree):
        result = rx.get_replica_context().merge_call(merge_fn, args=({"a": tree},))
        return result["sum"], result["tree"]["a"], result["none"]

    total, own, nothing = run(check, IDS)
    assert (float(total), nothing) == (6.0, None)
    assert [float(x) for x in own.values] == [1.0, 5.0]


def test_per_replica_results_are_selected(merge):
    assert [float(x) for x in merge(lambda strategy, x: x, IDS).values] == [1.0, 5.0]

    def swapped(strategy, x):
        return rx.PerReplica(list(reversed(strategy.local_results(x))))

    assert [float(x) for x in merge(swapped, IDS).values] == [5.0, 1.0]


def test_gather(merge):
    value = rx.PerReplica([jnp.array([1.0, 2.0]), jnp.array([5.0, 6.0])])
    np.testing.assert_array_equal(merge(lambda s, x: s.gather(x, 0), value), [1, 2, 5, 6])
    assert float(merge(lambda s, x: s.reduce("mean", x, axis=0), value)) == 3.5


def test_variables_are_written_inside(merge, w):
    def merge_fn(strategy, x):
        w.assign_add(strategy.reduce("sum", x, axis=None))
        return w.value

    assert float(merge(merge_fn, IDS)) == 7.0
    assert float(w) == 7.0


def test_writes_before_are_seen_inside_and_writes_inside_after(run, w):
    def replica_fn():
        context = rx.get_replica_context()
        w.assign(2.0)
        context.merge_call(lambda strategy: w.assign(w.value * 10))
        w.assign_add(1.0)

    run(replica_fn)
    assert float(w) == 21.0


def test_variables_are_passed_whole(run, w):
    def replica_fn():
        context = rx.get_replica_context()
        return context.merge_call(lambda s, v: v.value * 3, args=(w,))

    assert float(run(replica_fn)) == 3.0


def test_a_varying_write_inside_is_refused(merge, w):
    with pytest.raises(rx.errors.VaryingWriteError, match=r"`w\.assign`.*PerReplica"):
        merge(lambda strategy, x: w.assign(x), IDS)
    assert float(w) == 1.0


def test_an_error_inside_is_raised_as_it_is(merge, w):
    def merge_fn(strategy):
        w.assign(jnp.float32(2.0))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        merge(merge_fn)


def test_a_per_replica_value_is_no_number_inside(merge):
    with pytest.raises(rx.errors.ArgumentTypeError, match="as one array or number"):
        merge(lambda strategy, x: x + 1, IDS)


def test_collectives_are_refused_inside(run):
    def replica_fn():
        context = rx.get_replica_context()
        return context.merge_call(lambda strategy: context.all_reduce("sum", 1.0))

    with pytest.raises(rx.errors.ContextError, match="in cross-replica context"):
        run(replica_fn)


def test_a_result_with_the_wrong_number_of_components_is_refused(merge):
    with pytest.raises(rx.errors.InvalidArgumentError, match="has 2 replicas"):
        merge(lambda strategy: rx.PerReplica([1.0, 2.0, 3.0]))


def test_a_compiled_value_cannot_leave_the_merge_function(strategy):
    kept = []

    @rx.function
    def step(x):
        strategy.run(lambda x: rx.get_replica_context().merge_call(keep, args=(x,)), args=(x,))
        return strategy.reduce("sum", kept[0], axis=None)

    def keep(_, x):
        kept.append(x)

    with pytest.raises(rx.errors.ContextError, match="outside of its merge function"):
        step(IDS)
    with pytest.raises(rx.errors.ContextError, match="not at hand here"):
        _ = kept[0].values


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.merge_call(lambda strategy: 1, args=3),
        lambda c: c.merge_call(lambda strategy: 1, kwargs=[1]),
        lambda c: c.merge_call(3),
    ],
    ids=["args", "kwargs", "function"],
)
def test_bad_arguments_are_refused(run, call):
    with pytest.raises(rx.errors.ArgumentTypeError, match="merge_call"):
        run(lambda: call(rx.get_replica_context()))


def test_partials_and_lambdas_made_on_each_replica_are_one_function(run):
    def replica_fn():
        context = rx.get_replica_context()
        first = context.merge_call(functools.partial(lambda strategy, k: k, k=1.0))
        return first + context.merge_call(lambda strategy: 2.0)

    assert float(run(replica_fn)) == 3.0


# --- eager: what the replicas can do differently -----------------------------------------------


def test_different_functions_are_refused(strategy):
    def first(strategy):
        return 1

    def second(strategy):
        return 2

    def replica_fn():
        context = rx.get_replica_context()
        context.merge_call(second if context.replica_id_in_sync_group else first)

    with pytest.raises(rx.errors.CollectiveMismatchError) as caught:
        strategy.run(replica_fn)
    assert "first" in str(caught.value)
    assert "second" in str(caught.value)
    assert "test_merge_call.py" in str(caught.value)


def test_different_functions_of_one_name_are_refused(strategy):
    def replica_fn():
        context = rx.get_replica_context()
        merge_fn = (lambda s: 1) if context.replica_id_in_sync_group else (lambda s: 2)
        context.merge_call(merge_fn)

    with pytest.raises(rx.errors.CollectiveMismatchError, match="different functions"):
        strategy.run(replica_fn)


def test_a_merge_call_on_some_replicas_is_refused(strategy):
    def replica_fn():
        context = rx.get_replica_context()
        if context.replica_id_in_sync_group:
            context.merge_call(lambda s: 1)

    with pytest.raises(rx.errors.CollectiveMismatchError, match="replica 0 finished while") as e:
        strategy.run(replica_fn)
    assert "test_merge_call.py" in str(e.value)


def test_arguments_of_different_structures_are_refused(strategy):
    def replica_fn():
        context = rx.get_replica_context()
        tree = {"a": 1} if context.replica_id_in_sync_group else {"b": 1}
        context.merge_call(lambda s, x: 1, args=(tree,))

    with pytest.raises(rx.errors.StructureMismatchError):
        strategy.run(replica_fn)


def test_writes_inside_are_undone_if_the_run_fails_later(run, w):
    def replica_fn():
        rx.get_replica_context().merge_call(lambda strategy: w.assign(5.0))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(replica_fn)
    assert float(w) == 1.0
    run(lambda: w.assign_add(1.0))
    assert float(w) == 2.0


def test_under_a_gradient_in_eager_it_is_refused(strategy):
    def replica_fn():
        context = rx.get_replica_context()

        def loss(x):
            return context.merge_call(lambda s, x: s.reduce("mean", x, None), args=(x,))

        return jax.grad(loss)(1.0)

    with pytest.raises(rx.errors.UnimplementedError, match="merge_call"):
        strategy.run(replica_fn)
