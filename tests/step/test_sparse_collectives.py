"""Sparse rows through collectives, reductions and steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


@pytest.fixture
def four():
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(4)])


def per_replica(parts, dtype=None):
    return rx.PerReplica([jnp.asarray(part, dtype) for part in parts])


VALUES = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]
INDICES = [[0, 2], [2, 1]]
JOINED = np.array(VALUES, np.float32).reshape(4, 2)

# --- ctx.all_reduce ----------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "share"), [("sum", 1), ("MEAN", 2), (rx.ReduceOp.SUM, 1)])
def test_all_reduce_joins_rows_in_replica_order(run, strategy, op, share):
    def fn(values, indices):
        slices = rx.IndexedSlices(values, indices, dense_shape=(3, 2))
        return rx.get_replica_context().all_reduce(op, slices)

    result = run(fn, per_replica(VALUES), per_replica(INDICES))

    assert isinstance(result, rx.IndexedSlices)
    np.testing.assert_array_equal(result.values, JOINED / share)
    np.testing.assert_array_equal(result.indices, [0, 2, 2, 1])
    assert result.dense_shape == (3, 2)
    for part in (result.values, result.indices):
        assert part.sharding.is_fully_replicated
        assert part.sharding.device_set == set(strategy.replica_mesh.devices)


def test_all_reduce_of_a_tree_of_rows_and_whole_arrays(run):
    def fn(values, indices):
        tree = {
            "table": rx.IndexedSlices(values, indices),
            "bias": values[0],
            "more": [rx.IndexedSlices(values[:1], indices[:1]), jnp.int32(3)],
        }
        return rx.get_replica_context().all_reduce("mean", tree)

    result = run(fn, per_replica(VALUES), per_replica(INDICES))

    np.testing.assert_array_equal(result["table"].values, JOINED / 2)
    np.testing.assert_array_equal(result["bias"], [3.0, 4.0])
    np.testing.assert_array_equal(result["more"][0].indices, [0, 2])
    np.testing.assert_array_equal(result["more"][0].values, [[0.5, 1.0], [2.5, 3.0]])
    assert (result["more"][1], result["more"][1].dtype) == (3.0, jnp.float32)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("int32", "float32"), ("bool", "float32")],
)
def test_dtype_of_a_mean(run, dtype, expected):
    def fn(values):
        slices = rx.IndexedSlices(values, jnp.array([0]))
        return rx.get_replica_context().all_reduce("mean", slices)

    result = run(fn, per_replica([[1], [1]], dtype))

    assert result.values.dtype == expected
    np.testing.assert_array_equal(result.values.astype(jnp.float32), [0.5, 0.5])


@pytest.mark.parametrize("op", [rx.ReduceOp.MAX, rx.ReduceOp.MIN])
def test_no_maximum_of_rows(run, op):
    def fn(values):
        slices = rx.IndexedSlices(values, jnp.array([0, 1]))
        return rx.get_replica_context().all_reduce(op, [values, slices])

    with pytest.raises(rx.errors.InvalidArgumentError, match=f"{op.name} was given IndexedSlices"):
        run(fn, per_replica(VALUES))


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx, slices: ctx.all_gather([slices], axis=0),
        lambda ctx, slices: ctx.reduce_scatter("sum", {"a": slices}),
    ],
)
def test_other_collectives_say_what_to_call(run, call):
    def fn(values):
        return call(rx.get_replica_context(), rx.IndexedSlices(values, jnp.array([0, 1])))

    with pytest.raises(rx.errors.UnimplementedError, match=r"ctx\.all_reduce\('sum', slices\)"):
        run(fn, per_replica(VALUES))


def test_broadcast_of_rows(run):
    def fn(values, indices):
        return rx.get_replica_context().broadcast(rx.IndexedSlices(values, indices), source=1)

    result = run(fn, per_replica(VALUES), per_replica(INDICES))

    np.testing.assert_array_equal(result.values, VALUES[1])
    np.testing.assert_array_equal(result.indices, INDICES[1])


def test_outside_of_every_strategy(strategy):
    ctx = rx.get_replica_context()
    slices = rx.IndexedSlices(np.array([1, 2]), [3, 4])

    assert ctx.all_reduce("sum", slices).indices.tolist() == [3, 4]
    mean = ctx.all_reduce("mean", slices)
    assert (mean.values.dtype, mean.indices.dtype) == (jnp.float32, jnp.int32)


def test_replicas_may_hold_different_numbers_of_rows_in_the_eager_runner(strategy):
    def fn(values, indices):
        return rx.get_replica_context().all_reduce("mean", rx.IndexedSlices(values, indices))

    parts = (per_replica([[1.0, 2.0, 3.0], [4.0]]), per_replica([[5, 6, 7], [8]]))
    result = strategy.run(fn, args=parts)
    empty = strategy.run(
        fn, args=(per_replica([[], [4.0]], jnp.float32), per_replica([[], [8]], jnp.int32))
    )

    assert result.values.tolist() == [0.5, 1.0, 1.5, 2.0]
    assert result.indices.tolist() == [5, 6, 7, 8]
    assert (empty.values.tolist(), empty.indices.tolist()) == ([2.0], [8])


def test_replicas_that_disagree_are_told_on_what(strategy):
    def different_op(values):
        ctx = rx.get_replica_context()
        op = "sum" if ctx.replica_id_in_sync_group else "mean"
        return ctx.all_reduce(op, rx.IndexedSlices(values, jnp.array([0, 1])))

    def different_tree(values):
        ctx = rx.get_replica_context()
        slices = rx.IndexedSlices(values, jnp.array([0, 1]))
        return ctx.all_reduce("sum", slices if ctx.replica_id_in_sync_group else values)

    def different_shape(values):
        ctx = rx.get_replica_context()
        rows = 3 + ctx.replica_id_in_sync_group
        slices = rx.IndexedSlices(values, jnp.array([0, 1]), dense_shape=(rows, 2))
        return ctx.all_reduce("sum", slices)

    for fn, message in [
        (different_op, "MEAN"),
        (different_tree, "all_gather"),
        (different_shape, "tree"),
    ]:
        with pytest.raises(rx.errors.CollectiveMismatchError, match=message):
            strategy.run(fn, args=(per_replica(VALUES),))


def test_a_per_replica_value_is_refused_in_replica_context(run):
    outside = per_replica(VALUES)

    def fn(x):
        return rx.get_replica_context().all_reduce("sum", {"a": x, "b": outside})

    with pytest.raises(rx.errors.ArgumentTypeError, match="own component only"):
        run(fn, jnp.ones(2))


@pytest.mark.parametrize(("op", "share"), [("sum", 1.0), ("mean", 0.5)])
def test_the_gradient_flows_through_the_rows(run, op, share):
    def fn(values, indices, weights):
        def loss(values):
            joined = rx.get_replica_context().all_reduce(op, rx.IndexedSlices(values, indices))
            return (joined.to_dense(3) * weights).sum()

        return jax.grad(loss)(values)

    weights = [np.arange(6.0).reshape(3, 2), 10 + np.arange(6.0).reshape(3, 2)]
    result = run(fn, per_replica(VALUES), per_replica(INDICES), per_replica(weights, jnp.float32))

    # Each replica's loss sees the rows of both, as with whole arrays.
    expected = share * (weights[0] + weights[1])
    for got, indices in zip(result.values, INDICES, strict=True):
        np.testing.assert_allclose(got, expected[indices])


# --- in the proof ------------------------------------------------------------------------------


def test_rows_of_all_replicas_keep_a_mirrored_array_mirrored(strategy):
    def replica_step(table, values, indices):
        slices = rx.IndexedSlices(values, indices)
        joined = rx.get_replica_context().all_reduce("sum", slices)
        return table.at[joined.indices].add(joined.values)

    step = rx.function(lambda *args: strategy.run(replica_step, args=args))
    result = step(jnp.zeros((3, 2)), per_replica(VALUES), per_replica(INDICES))

    assert isinstance(result, jax.Array)
    np.testing.assert_array_equal(result, [[1, 2], [7, 8], [8, 10]])


@pytest.mark.parametrize("reduced", ["neither", "values", "indices"])
def test_rows_of_one_replica_may_not_reach_a_mirrored_variable(run, strategy, reduced):
    with strategy.scope():
        table = rx.Variable(jnp.zeros((3, 2)), name="table")

    def replica_step(values, indices):
        ctx = rx.get_replica_context()
        if reduced == "values":
            values = ctx.all_reduce("sum", values)
        if reduced == "indices":
            indices = ctx.all_reduce("sum", indices) % 3
        table.assign(table.value.at[indices].add(values))

    with pytest.raises(rx.errors.VaryingWriteError, match="table"):
        run(replica_step, per_replica(VALUES), per_replica(INDICES))
    np.testing.assert_array_equal(table.value, np.zeros((3, 2)))


# --- strategy.reduce ---------------------------------------------------------------------------


@pytest.fixture
def reduce(runner, strategy):
    def call(op, value, axis=None):
        return runner(lambda value: strategy.reduce(op, value, axis))(value)

    return call


@pytest.mark.parametrize(("op", "share"), [("sum", 1), ("mean", 2)])
def test_reduce_of_components(reduce, strategy, op, share):
    value = rx.PerReplica(
        [
            rx.IndexedSlices(jnp.array(v), jnp.array(i), (3, 2))
            for v, i in zip(VALUES, INDICES, strict=True)
        ]
    )
    result = reduce(op, {"g": value})["g"]

    np.testing.assert_array_equal(result.values, JOINED / share)
    np.testing.assert_array_equal(result.indices, [0, 2, 2, 1])
    assert result.dense_shape == (3, 2)
    assert result.values.sharding.device_set == set(strategy.replica_mesh.devices)


@pytest.mark.parametrize(("op", "share"), [("sum", 1), ("mean", 2)])
@pytest.mark.parametrize("which", ["both", "values", "indices"])
def test_reduce_of_what_a_run_returned(runner, strategy, op, share, which):
    """What happens to be equal on all replicas counts once a replica."""
    values = VALUES if which in {"both", "values"} else [VALUES[0]] * 2
    indices = INDICES if which in {"both", "indices"} else [INDICES[0]] * 2

    def fn(v, i, zero):
        # Mirrored where no varying value went in.
        v = v if which in {"both", "values"} else jnp.array(VALUES[0]) + zero
        i = i if which in {"both", "indices"} else jnp.array(INDICES[0]) + zero.astype(int)
        return rx.IndexedSlices(v, i)

    def step(v, i, zero):
        return strategy.reduce(op, strategy.run(fn, args=(v, i, zero)), axis=None)

    result = runner(step)(per_replica(values), per_replica(indices), jnp.zeros(()))

    np.testing.assert_array_equal(result.values, np.array(values, np.float32).reshape(4, 2) / share)
    np.testing.assert_array_equal(result.indices, np.array(indices).ravel())


def test_reduce_of_rows_that_were_joined_before(runner, strategy):
    def fn(values, indices):
        slices = rx.IndexedSlices(values, indices)
        return rx.get_replica_context().all_reduce("sum", slices)

    def step(op, values, indices):
        return strategy.reduce(op, strategy.run(fn, args=(values, indices)), axis=None)

    parts = (per_replica(VALUES), per_replica(INDICES))
    mean = runner(lambda *parts: step("mean", *parts))(*parts)
    np.testing.assert_array_equal(mean.values, JOINED)
    with pytest.raises(rx.errors.InvalidArgumentError, match="not a per-replica value"):
        runner(lambda *parts: step("sum", *parts))(*parts)


def test_reduce_of_uneven_components(strategy):
    value = rx.PerReplica([rx.IndexedSlices([1.0, 2.0], [0, 1]), rx.IndexedSlices([4.0], [5])])
    result = strategy.reduce("mean", value, axis=None)

    assert (result.values.tolist(), result.indices.tolist()) == ([0.5, 1.0, 2.0], [0, 1, 5])


def test_reduce_in_a_merge_call(run):
    def merge(strategy, slices):
        return strategy.reduce("sum", slices, axis=None)

    def fn(values, indices):
        ctx = rx.get_replica_context()
        return ctx.merge_call(merge, args=(rx.IndexedSlices(values, indices),))

    result = run(fn, per_replica(VALUES), per_replica(INDICES))

    np.testing.assert_array_equal(result.values, JOINED)
    np.testing.assert_array_equal(result.indices, [0, 2, 2, 1])


@pytest.mark.parametrize(("op", "axis"), [("sum", 0), ("mean", (0, 1)), (rx.ReduceOp.MAX, None)])
def test_reduce_refuses_axes_and_maxima(reduce, op, axis):
    value = rx.IndexedSlices(per_replica(VALUES), per_replica(INDICES))
    with pytest.raises(rx.errors.InvalidArgumentError, match="IndexedSlices"):
        reduce(op, value, axis)


@pytest.mark.parametrize(
    "value",
    [
        rx.IndexedSlices([1.0], [0]),
        rx.IndexedSlices(rx.PerReplica([1.0, 2.0]), rx.PerReplica([0, 1])),
    ],
    ids=["common", "per-replica"],
)
def test_gather_says_what_to_call(runner, strategy, value):
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"strategy\.reduce\('sum', slices"):
        runner(lambda: strategy.gather({"g": value}, axis=0))()


def test_local_results_are_one_value_a_replica(strategy):
    value = rx.IndexedSlices(per_replica(VALUES), per_replica(INDICES))
    first, second = strategy.local_results(value)

    assert (first.indices.tolist(), second.indices.tolist()) == (INDICES[0], INDICES[1])


def test_rows_of_a_padded_batch_are_not_reduced_with_their_padding(strategy):
    (batch,) = strategy.distribute_dataset(
        np.arange(3, dtype=np.int32), rx.InputOptions(global_batch_size=4)
    )

    def fn(rows):
        return rx.IndexedSlices(rows.astype(jnp.float32), rows)

    run = rx.function(lambda batch: strategy.run(fn, args=(batch,)))
    step = rx.function(lambda batch: strategy.reduce("sum", run(batch), axis=None))

    assert strategy.reduce("sum", run(batch), axis=None).indices.tolist() == [0, 1, 2]
    with pytest.raises(rx.errors.ContextError, match="example_mask"):
        step(batch)


# --- against one device ------------------------------------------------------------------------

TOKENS = np.array([3, 1, 1, 0, 4, 3, 3, 2, 0, 1, 4])
TARGETS = np.linspace(-1, 1, 11, dtype=np.float32)


def dense_training(table, batches, rate):
    for tokens, targets in batches:
        error = table[tokens].sum(axis=-1) - targets
        gradient = np.zeros_like(table)
        np.add.at(gradient, tokens, (2 * error / len(tokens))[:, None].repeat(2, axis=1))
        table = table - rate * gradient
    return table


@pytest.mark.sampled(3)
@pytest.mark.parametrize("style", ["variable", "functional"])
def test_an_embedding_trains_as_on_one_device(runner, four, style):
    """The last batch has 3 rows for 4 replicas: padded when compiled, uneven when eager."""
    start = np.linspace(0, 1, 10, dtype=np.float32).reshape(5, 2)
    batches = [(TOKENS[i : i + 4], TARGETS[i : i + 4]) for i in range(0, 11, 4)]
    expected = dense_training(start, batches, 0.3)
    with four.scope():
        variable = rx.Variable(start, name="table")

    def gradient(table, tokens, targets):
        ctx = rx.get_replica_context()

        def loss(rows):
            return ctx.global_mean((rows.sum(axis=-1) - targets) ** 2)

        rows = jax.grad(loss)(table[tokens])
        return ctx.all_reduce("mean", rx.IndexedSlices(rows, tokens))

    def functional(table, tokens, targets):
        slices = gradient(table, tokens, targets)
        return table.at[slices.indices].add(-0.3 * slices.values)

    def in_place(tokens, targets):
        variable.assign(functional(variable.value, tokens, targets))

    fn = in_place if style == "variable" else functional
    step = runner(lambda *args: four.run(fn, args=args))
    table = jnp.asarray(start)
    data = four.distribute_dataset((TOKENS, TARGETS), rx.InputOptions(global_batch_size=4))
    for tokens, targets in data:
        if style == "variable":
            step(tokens, targets)
            table = variable.value
        else:
            table = step(table, tokens, targets)

    np.testing.assert_allclose(table, expected, rtol=1e-5)


def test_rows_of_padding_that_were_not_masked_are_refused(four):
    with four.scope():
        table = rx.Variable(jnp.zeros(5), name="table")

    def fn(tokens):
        slices = rx.IndexedSlices(jnp.ones(tokens.shape), tokens)
        joined = rx.get_replica_context().all_reduce("sum", slices)
        table.assign(table.value.at[joined.indices].add(joined.values))

    (batch,) = four.distribute_dataset(TOKENS[:3], rx.InputOptions(global_batch_size=4))
    step = rx.function(lambda batch: four.run(fn, args=(batch,)))
    with pytest.raises(rx.errors.UnusedMaskError):
        step(batch)
