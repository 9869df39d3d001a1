"""`rx.function(steps_per_execution=k)`: the numbers of k calls, in one."""

from __future__ import annotations

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

SEVEN = [3.0, 12.0, 6.0]  # the sums of rows 0 to 6 in batches of 3


@functools.cache
def mirrored(n):
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(n)])


def data(strategy, rows, batch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    y = rng.normal(size=rows).astype(np.float32)
    return strategy.distribute_dataset((x, y), rx.InputOptions(global_batch_size=batch))


def until_the_end(step, batches):
    found = []
    try:
        while True:
            found.append(step(batches))
    except rx.errors.OutOfRangeError:
        return found


def close(mine, others):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), mine, others)


def sums(strategy):
    """One step: the sum of the rows of a batch."""

    def step(iterator):
        def replica_fn(rows):
            return rx.get_replica_context().global_sum(rows)

        return strategy.run(replica_fn, args=(iterator.get_next(),))

    return step


def numbers(strategy, rows=7, batch=3):
    rows = np.arange(rows, dtype=np.float32)
    return strategy.distribute_dataset(rows, rx.InputOptions(global_batch_size=batch))


# --- the numbers of as many calls ------------------------------------------------------------


def of_variables(strategy, steps):
    """Trains a model in variables; returns losses and all that it has written."""
    with strategy.scope():
        w = rx.Variable(jnp.ones(2), name="w")
        optimizer = rx.Optimizer(optax.sgd(0.1, momentum=0.9), [w])
        mean = rx.metrics.Mean()
    strategy.set_seed(7)

    @rx.function(steps_per_execution=steps)
    def step(iterator):
        def replica_step(batch):
            x, y = batch
            ctx = rx.get_replica_context()
            kept = jax.random.bernoulli(ctx.rng(), 0.5, (2,))

            def loss_fn():
                return ctx.global_mean((x @ (w.value * kept) - y) ** 2)

            loss, gradients = rx.value_and_grad(loss_fn, [w])()
            rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients), [w])
            mean.update_state(y)
            return loss

        return strategy.run(replica_step, args=(iterator.get_next(),))

    losses = until_the_end(step, iter(data(strategy, 31, 6)))
    state = [np.asarray(v) for v in (w, *optimizer.variables)]
    return np.concatenate([np.atleast_1d(x) for x in losses]), state, mean.result()


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3])
def test_variables_metrics_and_random_streams(n):
    """Six batches, the last one uneven: a call of four and one of two, one of them padded."""
    one_by_one = of_variables(mirrored(n), 1)
    assert len(one_by_one[0]) == 6
    close(of_variables(mirrored(n), 4), one_by_one)


def test_the_functional_style(strategy):
    tx = optax.sgd(0.1, momentum=0.9)

    def step(state, iterator, scale):
        def replica_step(state, batch):
            x, y = batch
            ctx = rx.get_replica_context()
            w, momentum = state
            loss, gradient = jax.value_and_grad(lambda w: ctx.global_mean((x @ w - y) ** 2))(w)
            updates, momentum = tx.update(ctx.all_reduce("mean", gradient), momentum)
            state = (optax.apply_updates(w, scale * updates), momentum)
            return state, {"loss": loss, "id": jnp.float32(ctx.replica_id_in_sync_group)}

        return strategy.run(replica_step, args=(state, iterator.get_next()))

    found = []
    for steps in (1, 3):
        run = rx.function(step, donate="state", steps_per_execution=steps)
        state = (jnp.ones(2), tx.init(jnp.ones(2)))
        batches = iter(data(strategy, 22, 3))
        losses, ids = [], []
        for _ in range(-(-batches.plan.num_steps // steps)):
            state, more = run(state, batches, 0.5)
            losses.append(np.atleast_1d(more["loss"]))
            ids.append([np.atleast_1d(x) for x in strategy.local_results(more["id"])])
        found.append((jax.device_get(state), np.concatenate(losses)))
        assert [np.concatenate(x).tolist() for x in zip(*ids, strict=True)] == [
            [replica] * len(found[0][1]) for replica in (0, 1)
        ]
    assert len(found[0][1]) == 8
    close(found[1], found[0])


def test_a_function_without_batches(strategy):
    """What is donated goes from step to step, also a Python number."""

    @rx.function(donate=("a", "z"), steps_per_execution=5)
    def step(z, a, c):
        return a, z + a * c

    assert [int(x) for x in step(0, jnp.int32(1), 1)] == [5, 8]


def test_what_is_written_in_some_batches_only(strategy):
    """The uneven batch is another trace, with other variables."""
    with strategy.scope():
        full, short = rx.Variable(0.0), rx.Variable(0.0)

    @rx.function(steps_per_execution=4)
    def step(iterator):
        batch = iterator.get_next()
        target = full if batch.rows is None else short

        def replica_fn(rows):
            target.assign_add(rx.get_replica_context().global_sum(rows))

        strategy.run(replica_fn, args=(batch,))

    step(iter(numbers(strategy, rows=7, batch=2)))
    assert (float(full), float(short)) == (15, 6)


def test_a_step_that_takes_several_batches(strategy):
    """Of one iterator two, of another one: as many steps as all have batches for."""
    one = sums(strategy)

    @rx.function(steps_per_execution=3)
    def step(a, b):
        return one(a), 10 * one(a), 100 * one(b)

    a, b = iter(numbers(strategy, rows=17, batch=2)), iter(numbers(strategy, rows=8, batch=2))
    of_a = [1, 5, 9, 13, 17, 21, 25, 29, 16]
    of_b = [1, 5, 9, 13]
    found = [np.asarray(step(a, b)).sum(0).tolist() for _ in range(2)]
    assert (a.step, b.step) == (8, 4)
    expected = [of_a[2 * i] + 10 * of_a[2 * i + 1] + 100 * of_b[i] for i in range(4)]
    assert found == [expected[:3], expected[3:]]
    with pytest.raises(rx.errors.OutOfRangeError, match="epoch 0 has 9 steps"):
        step(a, b)
    assert float(one(a)) == 16  # and it was left


def test_the_end_without_an_error(strategy):

    def total(rows):
        return rx.get_replica_context().global_sum(rows)

    @rx.function(steps_per_execution=2)
    def step(iterator):
        batch = iterator.get_next_as_optional()
        if not batch.has_value():
            return np.float32(-1)
        return strategy.run(total, args=(batch.get_value(),))

    batches = iter(numbers(strategy))
    assert [step(batches).tolist() for _ in range(4)] == [SEVEN[:2], SEVEN[2:], [-1], [-1]]


# --- positions -------------------------------------------------------------------------------


@functools.cache
def functions_of_sums():
    strategy = mirrored(2)
    return [None, *(rx.function(sums(strategy), steps_per_execution=k) for k in (1, 2, 3))]


@hypothesis.given(
    rows=st.integers(1, 13),
    calls=st.lists(st.sampled_from([0, 1, 2, 3, "resume"]), min_size=1, max_size=8),
    prefetch=st.integers(0, 2),
    once=st.booleans(),
)
def test_each_batch_is_taken_once_and_in_order(rows, calls, prefetch, once):
    """Calls of one, two and three steps, batches taken by hand, and new iterators in any order."""
    strategy = mirrored(2)
    expected = [np.arange(i, min(i + 2, rows)).sum() for i in range(0, rows, 2)]
    batches = [np.arange(i, min(i + 2, rows), dtype=np.float32) for i in range(0, rows, 2)]
    source = iter(batches) if once else batches
    dataset = strategy.distribute_dataset(source, rx.InputOptions(prefetch=prefetch))
    iterator = iter(dataset)
    found = []
    for call in calls:
        left = expected[len(found) :]
        if call == "resume":
            state = iterator.get_state()
            assert state["step"] == len(found)
            if left:
                iterator = iter(dataset)
                iterator.set_state(state)
        elif call == 0:
            batch = next(iterator, None)
            found += (
                []
                if batch is None
                else [sum(np.asarray(x).sum() for x in strategy.local_results(batch))]
            )
        elif not left:
            with pytest.raises(rx.errors.OutOfRangeError):
                functions_of_sums()[call](iterator)
        else:
            got = np.atleast_1d(functions_of_sums()[call](iterator)).tolist()
            assert len(got) == min(call, len(left))
            found += got
        assert found == expected[: len(found)]


def test_another_number_of_replicas_goes_on_in_the_middle(strategy):
    batches = iter(numbers(strategy, rows=16, batch=3))
    functions_of_sums()[3](batches)
    three = mirrored(3)
    resumed = iter(numbers(three, rows=16, batch=3))
    resumed.set_state(batches.get_state())
    assert np.asarray(rx.function(sums(three), steps_per_execution=9)(resumed)).tolist() == [
        30.0,
        39.0,
        15.0,
    ]


def test_an_error_of_the_source_runs_nothing(strategy):
    fails = [OSError("disk")]

    class Flaky:
        def __iter__(self):
            for i in range(4):
                if i == 2 and fails:
                    raise fails.pop()
                yield np.full(2, i, np.float32)

    batches = iter(strategy.distribute_dataset(Flaky()))
    step = functions_of_sums()[3]
    with pytest.raises(OSError, match="disk"):
        step(batches)
    assert batches.step == 0
    assert step(batches).tolist() == [0, 2, 4]


def test_an_error_in_the_step_puts_all_batches_back_and_names_them(strategy):
    """In the middle of a group: the padded batch is traced, too, before anything runs."""
    with strategy.scope():
        w = rx.Variable(0.0)

    @rx.function(steps_per_execution=3)
    def step(iterator):
        def replica_fn(rows):
            w.assign_add(rx.get_replica_context().all_reduce("mean", rows.mean()))

        strategy.run(replica_fn, args=(iterator.get_next(),))

    batches = iter(numbers(strategy, rows=9, batch=2))
    step(batches)
    before = float(w)
    with pytest.raises(rx.errors.UnusedMaskError) as caught:
        step(batches)
    assert "This call of `step` is for 2 steps: batches 3 to 4." in caught.value.__notes__
    assert (batches.step, float(w)) == (3, before)


def test_a_callback_that_raises_names_its_call(strategy):
    with strategy.scope():
        w = rx.Variable(0.0)

    def look(x):
        if x == 11:
            raise KeyError("eleven")
        return x

    @rx.function(steps_per_execution=4)
    def step(iterator):
        def replica_fn(rows):
            x = jax.pure_callback(look, jax.ShapeDtypeStruct((), jnp.float32), rows[0])
            w.assign_add(rx.get_replica_context().all_reduce("sum", x))

        strategy.run(replica_fn, args=(iterator.get_next(),))

    batches = iter(numbers(strategy, rows=16, batch=2))
    step(batches)
    before = float(w)
    with pytest.raises(KeyError, match="eleven") as caught:
        step(batches)
    notes = " ".join(caught.value.__notes__)
    assert "replica 1 of 2" in notes
    assert "in its call 2 of this execution" in notes
    assert "This call of `step` is for 4 steps: batches 4 to 7." in notes
    assert float(w) == before


# --- looking at it, and what is refused ------------------------------------------------------


def test_looking_at_it(strategy):
    step, batches = functions_of_sums()[3], iter(numbers(strategy))
    assert [c.kind for c in step.collectives(batches)] == ["all-reduce"] * 2  # one is padded
    shown = rx.explain(step, batches, replicas=4).programs  # what one step is
    assert [(one.batch, len(one.requests)) for one in shown] == [("remainder", 1)]
    assert batches.step == 0


def test_methods_and_static_arguments(strategy):
    class Model:
        @rx.function(steps_per_execution=2, static_argnames="factor")
        def step(self, iterator, factor):
            return sums(strategy)(iterator) * factor

    assert Model().step(iter(numbers(strategy)), factor=2).tolist() == [6, 24]


@pytest.mark.parametrize("steps", [0, True, 2.0])
def test_a_number_of_steps_is_a_positive_integer(steps):
    with pytest.raises(rx.errors.InvalidArgumentError, match="no positive integer"):
        rx.function(lambda: 0, steps_per_execution=steps)


def test_a_batch_in_the_place_of_an_iterator_is_refused(strategy):
    @rx.function(steps_per_execution=2)
    def step(batch):
        return strategy.run(lambda x: x, args=(batch,))

    for batch in (rx.PerReplica([1.0, 2.0]), np.ones(2, np.float32)):
        with pytest.raises(rx.errors.InvalidArgumentError, match=r"`batch` would be the same"):
            step(batch)


def test_state_that_is_not_donated_is_refused(strategy):
    def step(state, iterator):
        loss = sums(strategy)(iterator)
        return state + loss, loss

    batches = iter(numbers(strategy))
    with pytest.raises(rx.errors.InvalidArgumentError, match="`state` of `step` looks like state"):
        rx.function(step, steps_per_execution=2)(jnp.float32(0), batches)
    with pytest.raises(rx.errors.InvalidArgumentError, match="does not return its state") as caught:
        rx.function(step, donate="state", steps_per_execution=2)(jnp.int32(0), batches)
    assert "int32[]" in str(caught.value)
    assert batches.step == 0
    total, losses = rx.function(step, donate="state", steps_per_execution=2)(
        jnp.float32(0), batches
    )
    assert (float(total), losses.tolist()) == (15, SEVEN[:2])


def test_state_that_varies_is_refused(strategy):
    @rx.function(donate="w", steps_per_execution=2)
    def step(w, iterator):
        def replica_fn(w, rows):
            return w + rows.sum()

        return strategy.run(replica_fn, args=(w, iterator.get_next()))

    with pytest.raises(rx.errors.VaryingWriteError, match="State `w`"):
        step(jnp.float32(0), iter(numbers(strategy, batch=2)))


def test_rows_of_a_padded_batch_are_refused(strategy):
    @rx.function(steps_per_execution=2)
    def double(iterator):
        return strategy.run(lambda x: 2 * x, args=(iterator.get_next(),))

    batches = iter(numbers(strategy, rows=7, batch=2))
    rows = [x.tolist() for x in strategy.local_results(double(batches))]
    assert rows == [[[0], [4]], [[2], [6]]]
    with pytest.raises(rx.errors.InvalidArgumentError, match="cannot be stacked"):
        double(batches)
    assert batches.step == 2


def test_a_call_inside_of_a_step_is_refused(strategy):
    @rx.function
    def outer(iterator):
        return functions_of_sums()[3](iterator)

    with pytest.raises(rx.errors.ContextError, match="steps_per_execution=3"):
        outer(iter(numbers(strategy)))
