"""`strategy.run` in both runners: arguments, results, collectives."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

IDS = rx.PerReplica([1.0, 5.0])


def context():
    return rx.get_replica_context()


def compiled(strategy, fn, value, *, inside):
    """A compiled run with a value from inside the function, or that is its argument `x`."""
    if inside:
        return rx.function(lambda: strategy.run(fn, args=(value,)))()
    return rx.function(lambda x: strategy.run(fn, args=(x,)))(value)


# --- what the replica function closes over -----------------------------------------------------


def gradients_with_frozen_weights(frozen):
    """Derivatives of what JAX traces in several ways: nested, transposed, batched."""

    def loss(w):
        rows = jax.vmap(lambda row: jnp.sum(row * frozen * w) ** 2)(jnp.eye(3))
        total, _ = jax.lax.scan(
            lambda c, row: (c + jnp.sum(row * frozen * w), None), 0.0, jnp.eye(3)
        )
        best = jnp.sort(jax.jit(jnp.multiply)(frozen, w))[-1]
        return rows.sum() + total**2 + best + jax.nn.logsumexp(frozen * jax.nn.relu(w))

    return jax.grad(loss)(jnp.arange(1.0, 4.0)), jax.hessian(lambda w: (frozen @ w) ** 3)(frozen)


def test_arrays_of_variables_that_were_read_before(strategy):
    """They name the mesh of the replicas, and their derivatives do, too."""
    with strategy.scope():
        frozen = rx.Variable([0.5, 2.0, 1.0]).value

    found = rx.function(lambda: strategy.run(lambda: gradients_with_frozen_weights(frozen)))()

    expected = gradients_with_frozen_weights(jnp.array([0.5, 2.0, 1.0]))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


# --- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [3, "text", {"x": 1}, np.ones(2), None])
def test_args_must_be_a_list_or_tuple(runner, strategy, args):
    step = runner(lambda: strategy.run(lambda *a: 1.0, args=args))
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"`args=\(value,\)`"):
        step()


def test_kwargs_must_be_a_dictionary(runner, strategy):
    step = runner(lambda: strategy.run(lambda: 1.0, kwargs=[1]))
    with pytest.raises(rx.errors.ArgumentTypeError, match="must be a dictionary, not list"):
        step()


@pytest.mark.parametrize("fn", [3, None, "text"])
def test_fn_must_be_callable(runner, strategy, fn):
    with pytest.raises(rx.errors.ArgumentTypeError, match="takes a function"):
        runner(lambda: strategy.run(fn))()


def test_args_may_be_a_list_and_kwargs_are_unpacked(runner, strategy):
    def step(x, y):
        return strategy.run(lambda x, *, y: x + y, args=[x], kwargs={"y": y})

    result = runner(step)(IDS, 10.0)
    assert [float(x) for x in strategy.local_results(result)] == [11.0, 15.0]


def test_objects_are_passed_as_they_are(runner, strategy):
    marker = object()

    def replica_fn(mode, thing, number, nothing, x):
        assert (mode, number, nothing) == ("train", 3, None)
        assert thing is marker
        return x

    step = runner(lambda x: strategy.run(replica_fn, args=("train", marker, 3, None, x)))
    assert float(step(2.0)) == 2.0


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("inside", [True, False])
def test_the_wrong_number_of_components_is_refused(runner, strategy, values, inside):
    value = rx.PerReplica(values)
    if inside:
        step = runner(lambda: strategy.run(lambda batch: batch, args=(value,)))
        arguments = ()
    else:
        step = runner(lambda x: strategy.run(lambda batch: batch, args=(x,)))
        arguments = (value,)
    match = rf"`batch`.* with {len(values)} components, but {strategy.name} has 2"
    with pytest.raises(rx.errors.InvalidArgumentError, match=match):
        step(*arguments)


@pytest.mark.parametrize("inside", [True, False])
def test_a_per_replica_value_of_trees(runner, strategy, inside):
    value = rx.PerReplica([{"a": 1.0, "b": (2, None)}, {"a": 5.0, "b": (6, None)}])

    def replica_fn(tree):
        assert tree["b"][1] is None
        return tree["a"] + tree["b"][0]

    if inside:
        result = runner(lambda: strategy.run(replica_fn, args=(value,)))()
    else:
        result = runner(lambda x: strategy.run(replica_fn, args=(x,)))(value)
    assert [float(x) for x in strategy.local_results(result)] == [3.0, 11.0]


def test_components_that_are_numbers_arrive_as_arrays(run):
    def replica_fn(x):
        assert isinstance(x, jax.Array)
        return x.astype(jnp.int32)

    assert [int(x) for x in run(replica_fn, IDS).values] == [1, 5]


@pytest.mark.parametrize("inside", [True, False])
def test_trees_that_differ_are_refused_when_compiled_and_work_in_eager(strategy, inside):
    value = rx.PerReplica([{"a": 1.0}, {"b": 5.0}])

    def replica_fn(tree):
        return sum(tree.values())

    result = strategy.run(replica_fn, args=(value,))
    assert [float(x) for x in result.values] == [1.0, 5.0]
    with pytest.raises(rx.errors.StructureMismatchError, match="different structures") as caught:
        compiled(strategy, replica_fn, value, inside=inside)
    assert "0  PyTreeDef({'a': *})" in str(caught.value)
    assert "1  PyTreeDef({'b': *})" in str(caught.value)


@pytest.mark.parametrize("inside", [True, False])
def test_uneven_components_are_refused_when_compiled_and_work_in_eager(strategy, inside):
    value = rx.PerReplica([jnp.ones(2), jnp.ones(1)])
    result = strategy.run(lambda batch: batch * 2, args=(value,))
    assert [x.tolist() for x in result.values] == [[2.0, 2.0], [2.0]]
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"`(batch|x)` has comp") as caught:
        compiled(strategy, lambda batch: batch, value, inside=inside)
    assert "0  float32  (2,)" in str(caught.value)
    assert "distribute_dataset" in str(caught.value)


def test_dtypes_that_differ_are_refused_when_compiled(strategy):
    value = rx.PerReplica([np.float32(1), np.int32(1)])
    with pytest.raises(rx.errors.InvalidArgumentError, match="int32"):
        rx.function(lambda x: strategy.run(lambda x: x, args=(x,)))(value)


@pytest.mark.parametrize("inside", [True, False])
def test_components_that_are_no_arrays_are_refused_when_compiled(strategy, inside):
    value = rx.PerReplica(["a", "b"])
    assert strategy.run(lambda x: x, args=(value,)).values == ("a", "b")
    with pytest.raises(rx.errors.ArgumentTypeError, match="component of argument `x` is 'a'"):
        compiled(strategy, lambda x: 1.0, value, inside=inside)


def test_partials_and_callable_objects(run):
    class Scale:
        def __call__(self, x, by=2):
            return x * by

    assert [float(x) for x in run(Scale(), IDS).values] == [2.0, 10.0]
    assert [float(x) for x in run(functools.partial(Scale(), by=3), IDS).values] == [3.0, 15.0]


# --- results -----------------------------------------------------------------------------------


def test_results_that_are_equal_come_as_one_array(run, strategy):
    result = run(lambda: jnp.ones(2))
    assert isinstance(result, jax.Array)
    assert result.sharding.device_set == set(strategy.replica_mesh.devices)


def test_results_that_differ_are_per_replica(run, strategy):
    result = run(lambda x: {"a": x, "b": (x + 1, jnp.ones(1))}, IDS)
    assert [float(x) for x in result["a"].values] == [1.0, 5.0]
    assert isinstance(result["b"][0], rx.PerReplica)
    assert isinstance(result["b"][1], jax.Array)


def test_numbers_and_none(run):
    number, flag, nothing, real = run(lambda: (1, True, None, 2.5))
    assert (number, flag, nothing, real) == (1, True, None, 2.5)


def test_a_variable_as_a_result_is_its_value(run, strategy):
    with strategy.scope():
        w = rx.Variable(2.0, name="w")
    result = run(lambda: {"w": w})
    assert float(result["w"]) == 2.0
    assert not isinstance(result["w"], rx.Variable)


def test_a_per_replica_value_as_a_result_is_refused(run):
    with pytest.raises(rx.errors.ArgumentTypeError, match="Return the component"):
        run(lambda: {"a": rx.PerReplica([1.0, 2.0])})


def test_strings_and_objects_come_back_from_the_eager_runner(strategy):
    marker = object()
    text, thing = strategy.run(lambda: ("text", marker))
    assert text == "text"
    assert thing is marker


def test_a_string_cannot_come_back_from_a_compiled_step(strategy):
    step = rx.function(lambda: {"a": strategy.run(lambda: {"b": "text"})})
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"'text' at `result\['a'\]\['b'\]`"):
        step()


def test_structures_that_differ_are_refused(strategy):
    def replica_fn():
        return {"a": 1} if context().replica_id_in_sync_group else [1]

    with pytest.raises(rx.errors.StructureMismatchError) as caught:
        strategy.run(replica_fn)
    assert "0  PyTreeDef([*])" in str(caught.value)
    assert "1  PyTreeDef({'a': *})" in str(caught.value)


# --- collectives -------------------------------------------------------------------------------


def test_collectives_take_trees(run):
    def replica_fn(x):
        return context().all_reduce("sum", {"a": x, "b": (x * 2, None)})

    result = run(replica_fn, IDS)
    assert (float(result["a"]), float(result["b"][0]), result["b"][1]) == (6.0, 12.0, None)


def test_collectives_take_variables_and_mirrored_values(run, strategy):
    with strategy.scope():
        w = rx.Variable(2.0, name="w")

    def replica_fn():
        return context().all_reduce("sum", (w, rx.Mirrored(1.0)))

    assert [float(x) for x in run(replica_fn)] == [4.0, 2.0]


@pytest.mark.parametrize(("op", "expected"), [("sum", 6), ("mean", 3), ("max", 5), ("min", 1)])
def test_all_reduce(run, op, expected):
    parsed = rx.ReduceOp[op.upper()]
    assert float(run(lambda x: context().all_reduce(parsed, x), IDS)) == expected


def test_the_mean_of_integers_is_no_integer(run):
    mean = run(lambda x: context().all_reduce("mean", x), rx.PerReplica([1, 2]))
    assert (float(mean), mean.dtype) == (1.5, jnp.float32)


def test_the_other_collectives(run):
    def replica_fn(x):
        row = jnp.stack([x, x + 1])
        return (
            context().all_gather(row, 0),
            context().reduce_scatter("sum", row),
            context().broadcast(x, source=1),
        )

    gathered, scattered, sent = run(replica_fn, IDS)
    np.testing.assert_array_equal(gathered, [1, 2, 5, 6])
    assert [float(x[0]) for x in scattered.values] == [6.0, 8.0]
    assert float(sent) == 5.0


BAD_CALLS = {
    "unknown op": (lambda c: c.all_reduce("max", 1.0), rx.errors.InvalidArgumentError, "ReduceOp"),
    "no op": (lambda c: c.all_reduce(None, 1.0), rx.errors.ArgumentTypeError, "no reduce op"),
    "string": (lambda c: c.all_reduce("sum", "a"), rx.errors.ArgumentTypeError, "no array"),
    "object": (lambda c: c.broadcast(object()), rx.errors.ArgumentTypeError, "no array"),
    "bool sum": (lambda c: c.all_reduce("sum", True), rx.errors.ArgumentTypeError, "bool"),
    "scalar": (lambda c: c.all_gather(1.0, 0), rx.errors.InvalidArgumentError, "scalar"),
    "axis": (lambda c: c.all_gather(jnp.ones(2), 3), rx.errors.InvalidArgumentError, "axis=3"),
    "no axis": (lambda c: c.all_gather(jnp.ones(2), None), rx.errors.ArgumentTypeError, "axis"),
    "source": (lambda c: c.broadcast(1.0, source=2), rx.errors.InvalidArgumentError, "source=2"),
    "uneven": (
        lambda c: c.reduce_scatter("sum", jnp.ones(3)),
        rx.errors.InvalidArgumentError,
        "divisible",
    ),
    "options": (
        lambda c: c.all_reduce("sum", 1.0, options=3),
        rx.errors.ArgumentTypeError,
        "CommunicationOptions",
    ),
    "per-replica": (
        lambda c: c.all_reduce("sum", rx.PerReplica([1.0, 2.0])),
        rx.errors.ArgumentTypeError,
        "its own component",
    ),
    "mean of a scalar": (
        lambda c: c.global_mean(1.0),
        rx.errors.InvalidArgumentError,
        "one value for each row",
    ),
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_bad_calls_of_collectives(run, call):
    fn, error, match = BAD_CALLS[call]
    with pytest.raises(error, match=match):
        run(lambda: fn(context()))


def test_global_mean_and_sum(run, strategy):
    (batch,) = strategy.distribute_dataset([np.array([1.0, 2.0, 6.0])])

    def replica_fn(x):
        return context().global_mean(x), context().global_sum(x)

    assert [float(x) for x in run(replica_fn, batch)] == [3.0, 9.0]


def test_a_length_that_is_not_that_of_the_batch_is_refused(strategy):
    (batch,) = strategy.distribute_dataset([np.array([1.0, 2.0, 6.0])])
    step = rx.function(lambda b: strategy.run(lambda x: context().global_mean(x[:1]), args=(b,)))
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"shape \(2, \.\.\.\)"):
        step(batch)


def test_a_padded_batch_whose_mask_is_not_used_is_refused(strategy):
    (batch,) = strategy.distribute_dataset([np.array([1.0, 2.0, 6.0])])
    step = rx.function(lambda b: strategy.run(lambda rows: rows.sum(), args=(b,)))
    with pytest.raises(rx.errors.UnusedMaskError, match="argument `rows` is a padded") as caught:
        step(batch)
    assert "global_mean" in str(caught.value)


def test_two_padded_batches_of_different_sizes_are_refused(strategy):
    (short,) = strategy.distribute_dataset([np.zeros(3)])
    (long,) = strategy.distribute_dataset([np.zeros(5)])
    step = rx.function(lambda a, b: strategy.run(lambda a, b: (a, b), args=(a, b)))
    with pytest.raises(rx.errors.InvalidArgumentError, match="different sizes") as caught:
        step(short, long)
    assert "argument `b`" in str(caught.value)


def test_results_of_which_it_is_unknown_what_is_padding_are_refused(strategy):
    (batch,) = strategy.distribute_dataset([np.zeros(3)])

    def replica_fn(x):
        context().global_sum(x)
        return {"a": x.reshape(1, -1)}

    step = rx.function(lambda b: strategy.run(replica_fn, args=(b,)))
    with pytest.raises(rx.errors.UnprovenError, match=r"`result\['a'\]` are padding"):
        step(batch)


def test_a_batch_with_fewer_rows_than_replicas(run, strategy):
    (batch,) = strategy.distribute_dataset([np.array([5.0])])
    assert float(run(lambda x: context().global_mean(x), batch)) == 5.0
    assert strategy.gather(run(lambda x: x * 2, batch), 0).tolist() == [10.0]


# --- what the proof refuses --------------------------------------------------------------------


def test_a_python_branch_on_a_traced_value_is_refused_when_compiled(strategy):
    def replica_fn():
        if context().replica_id_in_sync_group == 0:
            return context().all_reduce("sum", 1.0)
        return 1.0

    with pytest.raises(rx.errors.VaryingControlFlowError, match=r"test_run\.py:\d+ in replica_fn"):
        rx.function(lambda: strategy.run(replica_fn))()
