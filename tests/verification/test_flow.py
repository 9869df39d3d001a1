"""What flows through which collective, on traced programs that never run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.step._looking import look
from replicax.verification._flow import flow_of


@pytest.fixture(scope="module")
def strategy():
    return rx.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture(scope="module")
def w(strategy):
    with strategy.scope():
        return rx.Variable(jnp.zeros(3), name="w")


ROWS = rx.PerReplica([np.ones((4, 3), np.float32)] * 2)


def flow(strategy, replica_fn, then=lambda result: result, *, batch=ROWS):
    step = rx.function(lambda x: then(strategy.run(replica_fn, args=(x,))))
    return flow_of(look(step, (batch,), {}).traced, 0)


def test_a_result_names_the_nearest_collective_and_its_line(strategy):
    def replica_fn(x):
        ctx = rx.get_replica_context()
        first = ctx.all_reduce("sum", x.sum())
        return first, ctx.all_reduce(rx.ReduceOp.MAX, x)

    found = flow(strategy, replica_fn)

    assert [value.meetings for value in found.outputs] == [{0}, {1}]
    assert [(m.op, m.bytes, m.is_needed) for m in found.meetings] == [
        ("psum", 4, True),
        ("pmax", 48, True),
    ]
    assert "test_flow.py" in str(found.meetings[0].site)


def test_what_is_combined_twice_is_combined(strategy):
    def replica_fn(x):
        ctx = rx.get_replica_context()
        return ctx.all_reduce("mean", ctx.all_reduce("sum", x.sum()))

    [value] = flow(strategy, replica_fn).outputs

    assert value.meetings == {1}
    assert value.is_combined


def test_equal_values_need_no_collective(strategy, w):
    def replica_fn(_):
        return rx.get_replica_context().all_reduce("mean", w.value)

    found = flow(strategy, replica_fn)

    assert not found.meetings[0].is_needed
    assert found.meetings[0].reads_state
    assert not found.outputs[0].is_combined


def test_a_reduction_after_the_run_is_a_collective_too(strategy):
    found = flow(strategy, lambda x: x.sum(), lambda y: strategy.reduce("sum", y, axis=None))

    [meeting] = found.meetings
    assert (meeting.op, meeting.is_needed) == ("reduce_sum", True)
    assert found.outputs[0].is_combined


def test_through_loops_and_branches(strategy):
    def replica_fn(x):
        ctx = rx.get_replica_context()
        total, _ = jax.lax.scan(
            lambda carry, row: (carry + ctx.all_reduce("sum", row.sum()), None), 0.0, x
        )
        return jax.lax.cond(total > 0, lambda t: t + 1, lambda t: t, total)

    [value] = flow(strategy, replica_fn).outputs

    assert value.is_combined
    assert not value.varies


@pytest.mark.parametrize(
    ("draw", "is_overlay"),
    [
        (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), True),
        (lambda x: x + jnp.asarray(np.random.default_rng(0).normal(size=(4, 3))), True),
        (lambda x: x + jax.random.normal(rx.get_replica_context().rng(), x.shape), False),
        (lambda x: x @ jax.random.normal(jax.random.key(0), (3, 3)), False),
        (lambda x: x + jax.random.normal(jax.random.key(0), (3,)), False),
        (lambda x: x * jnp.ones((4, 3)), False),
    ],
    ids=["one key", "NumPy", "own keys", "weights", "bias", "ones"],
)
def test_numbers_that_are_laid_alike_over_rows(strategy, draw, is_overlay):
    assert bool(flow(strategy, draw).laid_over_rows) is is_overlay


def test_what_is_added_alike_on_all_replicas_has_its_line(strategy, w):
    def replica_fn(x):
        loss = x.sum() + (w.value**2).sum()
        return rx.get_replica_context().all_reduce("sum", loss)

    found = flow(strategy, replica_fn)

    assert "test_flow.py" in str(found.common[0])
    assert found.meetings[0].common == found.common[0]


def test_a_step_without_replicas_is_known_as_one():
    step = rx.function(lambda x: x + 1)

    found = flow_of(look(step, (jnp.ones(3),), {}).traced, 0)

    assert not found.has_replicas
    assert found.meetings == ()
