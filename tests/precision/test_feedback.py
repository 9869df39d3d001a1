"""Reductions in half precision in steps: what is rounded, and where the rest goes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

BFLOAT16 = rx.CommunicationOptions(wire_dtype="bfloat16")
X = np.array([[1.01, 0.0, 3.0], [1.02, 2e-3, 1.0]], np.float32)


@pytest.fixture
def rounding():
    """A strategy whose reductions are in half precision."""
    return rx.MirroredStrategy(["cpu:0", "cpu:1"], options=BFLOAT16)


# --- by option -----------------------------------------------------------------------------------


def test_arrays_that_the_step_combines_are_rounded_and_nothing_else(rounding, runner):
    with rounding.scope():
        mean = rx.Variable(np.zeros(3, np.float32), aggregation="mean")
        metric = rx.metrics.Mean()

    def replica_fn(x):
        ctx = rx.get_replica_context()
        mean.assign(x)
        metric.update_state(x)
        loss = ctx.global_mean(jnp.broadcast_to(x, (300, 3)))  # Its gradient is a row's too.
        whole = ctx.all_reduce("mean", x, rx.CommunicationOptions(wire_dtype="float32"))
        return loss, ctx.all_reduce("mean", x), ctx.all_reduce("mean", x[0]), whole

    step = runner(lambda x: rounding.run(replica_fn, args=(x,)))
    loss, combined, scalar, whole = step(rx.PerReplica(list(X)))

    exact = X.mean(0)
    for value in (loss, mean.value, whole):
        np.testing.assert_allclose(value, exact, rtol=1e-6)
    np.testing.assert_allclose(scalar, exact[0], rtol=1e-6)
    np.testing.assert_allclose(float(metric.result()), X.mean(), rtol=1e-6)
    np.testing.assert_array_equal(combined, X.astype(jnp.bfloat16).astype(np.float32).mean(0))


def test_replicas_that_disagree_on_the_way_are_named(strategy):
    def replica_fn(x):
        ctx = rx.get_replica_context()
        own = BFLOAT16 if ctx.replica_id_in_sync_group else None
        return ctx.all_reduce("sum", x, own)

    with pytest.raises(rx.errors.CollectiveMismatchError, match=r"as it is(.|\n)*bfloat16"):
        strategy.run(replica_fn, args=(jnp.ones(3),))


@pytest.mark.slow
def test_explain_and_verify_know_of_it(rounding):
    with rounding.scope():
        w = rx.Variable(np.ones(16, np.float32), name="w")

    @rx.function
    def step(batch):
        def replica_step(x):
            ctx = rx.get_replica_context()
            loss, gradients = rx.value_and_grad(
                lambda: ctx.global_mean(jnp.tanh(x @ w.value) ** 2), [w]
            )()
            w.assign_sub(0.1 * ctx.all_reduce("mean", gradients)[0])
            return loss

        return rounding.run(replica_step, args=(batch,))

    rows = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    dataset = rounding.distribute_dataset([rows] * 3)
    report = rx.verify(rounding, step, [w], dataset)
    assert report.ok, str(report)
    finding = next(each for each in report.findings if each.check == "parity")
    assert finding.status.name == "PASSED"
    assert "bfloat16" in finding.what
    shown = rx.explain(step, next(iter(dataset)))
    (request,) = [each for each in shown.programs[0].requests if each.bytes == 64]
    assert [(pack.dtype, pack.bytes) for pack in request.packs] == [("float32 as bfloat16", 32)]
    assert "float32 as bfloat16" in str(shown)


# --- error feedback ------------------------------------------------------------------------------


def test_nothing_is_lost_in_the_long_run(strategy, runner):
    with strategy.scope():
        total = rx.Variable(np.zeros(3, np.float32))
        feedback = rx.precision.ErrorFeedback([total], BFLOAT16)

    def replica_fn(x):
        total.assign_add(feedback.all_reduce([x])[0])

    step = runner(lambda x: strategy.run(replica_fn, args=(x,)))
    for _ in range(8):
        step(rx.PerReplica(list(X)))
    left = feedback.residuals[0]
    np.testing.assert_allclose(total.value + left.value, 8 * X.mean(0), rtol=1e-6)
    step(rx.PerReplica([X[0], np.full(3, np.nan, np.float32)]))  # A step that will be skipped.
    assert np.isfinite(left.value).all()


@pytest.mark.slow
def test_a_checkpoint_keeps_what_is_still_to_be_added_on_any_number_of_replicas(tmp_path):
    def made(count):
        strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(count)])
        with strategy.scope():
            return strategy, rx.precision.ErrorFeedback({"w": X[0], "scale": X[0, 0]}, BFLOAT16)

    strategy, two = made(2)
    strategy.run(lambda x: two.all_reduce([x[0], x])[1], args=(rx.PerReplica(list(X)),))
    assert two.residuals[0] is None  # A scalar.
    wanted = (X - X.astype(jnp.bfloat16).astype(np.float32)).mean(0)
    np.testing.assert_array_equal(two.residuals[1].value, wanted)
    rx.checkpoint.Checkpoint(feedback=two).save(tmp_path / "two")

    _, three = made(3)
    checkpoint = rx.checkpoint.Checkpoint(feedback=three)
    checkpoint.restore(tmp_path / "two").assert_consumed()
    np.testing.assert_allclose(three.residuals[1].value, wanted, rtol=1e-6)


def test_the_functional_style(rounding):
    def replica_fn(x, residual):
        ctx = rx.get_replica_context()
        return rx.precision.all_reduce_with_feedback(ctx, "sum", x, residual)

    @rx.function(donate="residual")
    def step(x, residual):
        return rounding.run(replica_fn, args=(x, residual))

    residual, totals = rx.PerReplica([jnp.zeros(3)] * 2), []
    for _ in range(4):
        total, residual = step(rx.PerReplica(list(X)), residual)
        totals.append(total)
    left = sum(np.asarray(each) for each in residual.values)
    np.testing.assert_allclose(sum(totals) + left, 4 * X.sum(0), rtol=1e-6)


def test_one_replica_sends_nothing():
    w = rx.Variable(X[0])
    feedback = rx.precision.ErrorFeedback([w], BFLOAT16)
    np.testing.assert_array_equal(feedback.all_reduce([X[1]])[0], X[1])
    assert not np.any(feedback.residuals[0].value)


def test_mistakes_are_named(strategy):
    with strategy.scope():
        feedback = rx.precision.ErrorFeedback([X[0]])
        with pytest.raises(rx.errors.ContextError, match="cross-replica"):
            feedback.all_reduce([X[0]])
    with pytest.raises(rx.errors.InvalidArgumentError, match="MAX"):
        rx.precision.ErrorFeedback([], op=rx.ReduceOp.MAX)
    with pytest.raises(rx.errors.InvalidArgumentError, match="nothing is rounded"):
        strategy.run(lambda: feedback.all_reduce([jnp.asarray(X[0])]))
    with pytest.raises(rx.errors.InvalidArgumentError, match="2 gradients, but there are 1"):
        strategy.run(lambda: feedback.all_reduce([jnp.asarray(X[0])] * 2))
