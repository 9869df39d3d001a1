"""`rx.verify`: what it finds in a step, and that it leaves everything as it was."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

ROWS = np.arange(1, 11, dtype=np.float32)  # 3 batches of 4: the last one has 2 rows


@pytest.fixture(scope="module")
def strategy():
    return rx.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture
def w(strategy):
    with strategy.scope():
        return rx.Variable(1.0, name="w")


def batches(strategy, rows=ROWS):
    return strategy.distribute_dataset(rx.data.from_arrays(rows).batch(4))


def descent(strategy, w, op="mean", change=lambda gradient: gradient):
    """A step of gradient descent on the squared error of one weight."""

    def replica_step(x):
        ctx = rx.get_replica_context()
        loss, [gradient] = rx.value_and_grad(
            lambda: ctx.global_mean((w.value * x - 2 * x) ** 2), [w]
        )()
        w.assign_sub(0.01 * ctx.all_reduce(op, change(gradient)))
        return {"loss": loss}

    return rx.function(lambda x: strategy.run(replica_step, args=(x,)))


def found(report, check):
    return [each for each in report.findings if each.check == check]


def failed(report, check):
    [finding] = [each for each in found(report, check) if each.is_failed]
    return str(finding)


@pytest.fixture(scope="module")
def correct(strategy):
    """The report of a correct step, and what there was before and after."""
    unused = rx.Variable(1.0, dtype="bfloat16", name="unused")  # lives meanwhile
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
    step, dataset = descent(strategy, w), batches(strategy)
    held = w._value
    report = rx.verify(strategy, step, [w], dataset)
    assert unused.value == 1
    return report, (w, held, step, dataset)


def test_a_correct_step_passes_every_check(correct):
    report, _ = correct

    assert report.ok, str(report)
    checks = ["rows", "mirrored", "runs", "trace", "collectives", "parity", "random", "busy"]
    assert list(dict.fromkeys(each.check for each in report.findings)) == [
        "rows",
        "mirrored",
        "runs",
        "trace",
        *checks[4:],
    ]
    assert {each.status.value for each in report.findings} == {"passed"}
    parity = found(report, "parity")
    assert len(parity) == 2  # a full batch, and the uneven last one
    for each in parity:
        assert "within 0.0001 of" in each.what  # float32, whatever else lives
    report.raise_if_failed()


def test_variables_hold_the_very_arrays_that_they_held(correct):
    _, (w, held, step, dataset) = correct

    assert w._value is held
    assert not held.is_deleted()
    assert dataset._next_epoch == 0  # the epoch that comes next has not begun
    loss = step(next(iter(dataset)))["loss"]
    assert float(loss) == pytest.approx(float(np.mean(ROWS[:4] ** 2)))


def test_the_facts_are_those_of_the_step(correct):
    report, _ = correct
    facts = report.facts

    assert [each.counts for each in facts.coverage] == [(2, 2), (2, 2), (1, 1)]
    assert facts.coverage[1].first == (4, 6)
    [carrying] = [each for each in facts.collectives if "w" in each.carries]
    assert (carrying.bytes, carrying.group) == (8, 2)  # the loss travels with the gradient
    assert "test_verify.py" in carrying.line
    assert sum(each.bytes for each in facts.compiled) == sum(x.bytes for x in facts.collectives)
    assert facts.losses == pytest.approx(facts.losses_of_one, rel=1e-5)
    assert len(facts.losses) == len(facts.step_seconds) == 6


def test_l6_each_device_was_busy_and_the_times_of_each_replica_are_told(correct):
    report, _ = correct

    assert [each.device for each in report.facts.times] == ["cpu:0", "cpu:1"]
    assert all(each.compute > 0 for each in report.facts.times)
    assert {span.replica for span in report.facts.spans} == {0, 1}
    assert "CPU cores" in found(report, "busy")[0].why
    for column in ("replica", "compute", "communication", "waits for input"):
        assert column in str(found(report, "busy")[0])


def test_a_sum_of_gradients_is_named_with_its_factor(strategy, w):
    report = rx.verify(strategy, descent(strategy, w, op="sum"), [w], batches(strategy))

    words = failed(report, "parity")
    assert "`w`" in words
    assert "2 times that of one device" in words
    with pytest.raises(rx.errors.VerificationError, match="are summed"):
        report.raise_if_failed()


def test_clipping_before_the_reduction_is_named(strategy, w):
    step = descent(strategy, w, change=lambda gradient: jnp.clip(gradient, -20, 20))

    report = rx.verify(strategy, step, None, batches(strategy, ROWS[:8]))

    assert "done to a replica's own gradient" in failed(report, "parity")


def test_a_mean_of_means_is_named_in_the_uneven_batch(strategy, w):
    def replica_step(x):
        ctx = rx.get_replica_context()
        mask = jnp.ones(x.shape) if ctx.example_mask is None else ctx.example_mask
        ratio = (x * mask).sum() / mask.sum()
        w.assign_sub(0.01 * ctx.all_reduce("mean", ratio))

    step = rx.function(lambda x: strategy.run(replica_step, args=(x,)))
    report = rx.verify(strategy, step, None, batches(strategy, np.arange(7, dtype=np.float32)))

    words = failed(report, "parity")
    assert "uneven last batch" in words
    assert "2, 1 rows" in words


def test_a_step_that_the_library_refuses_is_a_finding(strategy, w):
    step = rx.function(lambda x: strategy.run(lambda x: w.assign(x.sum()), args=(x,)))

    report = rx.verify(strategy, step, None, batches(strategy))

    assert "VaryingWriteError" in failed(report, "runs")


def test_replicas_that_all_compute_the_same_are_named(strategy, w):
    rows = jnp.asarray(ROWS[:4])

    def replica_step(_):
        w.assign_sub(0.01 * rx.get_replica_context().all_reduce("mean", w.value * rows.mean()))

    step = rx.function(lambda x: strategy.run(replica_step, args=(x,)))
    report = rx.verify(strategy, step, None, batches(strategy), one_device=False)

    assert "equal on all replicas" in failed(report, "collectives")
    assert not found(report, "parity")


def noisy(strategy, w, key):
    def replica_step(x):
        ctx = rx.get_replica_context()
        mask = jax.random.bernoulli(key(ctx), 0.5, x.shape)
        w.assign_sub(0.01 * ctx.all_reduce("mean", jnp.where(mask, w.value * x, 0).mean()))

    return rx.function(lambda x: strategy.run(replica_step, args=(x,)))


def test_masks_of_each_replica_are_right_and_not_compared(strategy, w):
    stream = strategy.random_stream._state._value

    report = rx.verify(strategy, noisy(strategy, w, lambda ctx: ctx.rng()), None, [])
    assert "no batches" in failed(report, "rows")
    report = rx.verify(
        strategy, noisy(strategy, w, lambda ctx: ctx.rng()), None, batches(strategy, ROWS[:8])
    )

    assert report.ok, str(report)
    [parity] = found(report, "parity")
    assert parity.status is rx.verification.Status.NOT_CHECKED
    assert "random numbers of its own" in parity.why
    assert strategy.random_stream._state._value is stream


def test_one_mask_for_all_replicas_is_named_with_its_line(strategy, w):
    step = noisy(strategy, w, lambda _: jax.random.key(7))

    report = rx.verify(strategy, step, None, batches(strategy, ROWS[:8]), one_device=False)

    words = failed(report, "random")
    assert "draw the same numbers for different rows" in words
    assert "test_verify.py" in words


def test_a_counter_in_python_is_named(strategy, w):
    calls = []

    def step(x):
        calls.append(1)
        rate = 0.01 / len(calls)

        def replica_step(x):
            w.assign_sub(rate * rx.get_replica_context().all_reduce("mean", (w.value * x).mean()))

        strategy.run(replica_step, args=(x,))

    report = rx.verify(strategy, rx.function(step), None, batches(strategy, ROWS[:8]))

    assert "another program each time" in failed(report, "trace")
    assert found(report, "parity")[0].status is rx.verification.Status.NOT_CHECKED


def test_the_same_rows_on_all_replicas_are_named(strategy, w):
    dataset = strategy.distribute_datasets_from_function(
        lambda context: [ROWS[:2], ROWS[:2], ROWS[2:4], ROWS[2:4]]
    )

    report = rx.verify(strategy, descent(strategy, w), None, dataset, one_device=False)

    assert "Replicas hold the same rows" in failed(report, "rows")


def test_rows_that_nobody_reads_are_a_warning(strategy, w):
    options = rx.InputOptions(remainder="drop", global_batch_size=4)
    rows = ROWS[:5]
    dataset = strategy.distribute_dataset(rows, options)

    report = rx.verify(strategy, descent(strategy, w), None, dataset, one_device=False)

    [warning] = [x for x in found(report, "rows") if x.status is rx.verification.Status.WARNING]
    assert "4 of 5 rows" in warning.what
    assert report.ok


def test_an_eager_step_is_verified_too(strategy, w):
    def step(x):
        def replica_step(x):
            ctx = rx.get_replica_context()
            w.assign_sub(0.01 * ctx.all_reduce("mean", ctx.global_mean(w.value * x)))

        strategy.run(replica_step, args=(x,))
        return float(w.value)

    report = rx.verify(strategy, step, [w], batches(strategy, ROWS[:4]))

    assert report.ok, str(report)
    assert found(report, "parity")[0].status is rx.verification.Status.PASSED
    assert found(report, "collectives")[0].status is rx.verification.Status.NOT_CHECKED
    assert float(w.value) == 1.0


def test_a_functional_state_is_not_given_away(strategy):
    @rx.function(donate="state")
    def step(state, x):
        def replica_step(state, x):
            ctx = rx.get_replica_context()
            gradient = ctx.all_reduce("mean", ctx.global_mean(state["w"] * x))
            return {"w": state["w"] - 0.01 * gradient, "steps": state["steps"] + 1}

        return strategy.run(replica_step, args=(state, x)), None

    state = {"w": jnp.float32(1.0), "steps": jnp.int32(0)}

    report = rx.verify(strategy, step, state, batches(strategy, ROWS[:8]))

    assert report.ok, str(report)
    assert "state['w']" in str(found(report, "collectives")[0])
    assert (float(state["w"]), int(state["steps"])) == (1.0, 0)


def test_batches_are_put_back_into_an_iterator(strategy, w):
    iterator = iter(batches(strategy))
    next(iterator)

    report = rx.verify(strategy, descent(strategy, w), None, iterator, one_device=False)

    assert [each.counts for each in report.facts.coverage] == [(2, 2), (1, 1)]
    left = [np.concatenate(strategy.local_results(x)).tolist() for x in iterator]
    assert left == [ROWS[4:8].tolist(), ROWS[8:].tolist()]


def test_a_dataset_that_can_be_read_once_is_refused(strategy, w):
    dataset = strategy.distribute_dataset(iter([ROWS[:4]]))

    with pytest.raises(rx.errors.FailedPreconditionError, match="only once"):
        rx.verify(strategy, descent(strategy, w), None, dataset)


@pytest.mark.parametrize(
    ("which", "wrong"),
    [(0, "no strategy"), (1, "no function")],
    ids=["strategy", "step"],
)
def test_wrong_arguments_are_echoed(strategy, which, wrong):
    arguments = [strategy, lambda x: x, None, []]
    arguments[which] = 3

    with pytest.raises(rx.errors.ArgumentTypeError, match=wrong):
        rx.verify(*arguments)


def test_variables_stay_after_a_step_that_fails(strategy, w):
    held = w._value

    def step(x):
        w.assign(5.0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        rx.verify(strategy, step, None, batches(strategy))
    assert w._value is held


@pytest.mark.parametrize(("op", "status"), [("sum", "passed"), ("mean", "warning")])
def test_a_number_of_replicas_from_outside_is_one_on_one_device(strategy, w, op, status):
    num_replicas = strategy.num_replicas_in_sync

    def replica_step(x):
        ctx = rx.get_replica_context()
        w.assign_sub(0.01 * ctx.all_reduce(op, (w.value * x).mean() / num_replicas))

    step = rx.function(lambda x: strategy.run(replica_step, args=(x,)))
    report = rx.verify(strategy, step, None, batches(strategy, ROWS[:8]))

    [parity] = found(report, "parity")
    assert parity.status.value == status
    assert "`num_replicas`" in parity.why
