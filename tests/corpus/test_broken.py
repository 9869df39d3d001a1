"""Broken steps are refused while they are traced, and nothing is changed by them."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

import replicax as rx
from replicax import errors

from .broken import ENTRIES, World, per_row

EAGER = [entry for entry in ENTRIES if entry.eager]


@pytest.fixture
def world():
    return World()


def snapshot(world):
    return [np.asarray(variable).tobytes() for variable in world.variables()]


def assert_correct_step_works(world):
    """The next step of the same process and variables gives the number of one device."""

    def replica_step(batch):
        ctx = rx.get_replica_context()
        grad = jax.grad(lambda w: ctx.global_mean(per_row(w, batch)))(world.w.value)
        world.w.assign_sub(0.1 * ctx.all_reduce("mean", grad))

    w = np.asarray(world.w)
    rx.function(world.run(replica_step))(world.padded)
    x, y = world.rows.x[:7], world.rows.y[:7]
    expected = w - 0.1 * 2 * ((x @ w - y)[:, None] * x).mean(0)
    np.testing.assert_allclose(np.asarray(world.w), expected, rtol=1e-5, atol=1e-6)


def line_of(function, mark):
    source, first = inspect.getsourcelines(function)
    (offset,) = [i for i, line in enumerate(source) if line.rstrip().endswith(mark)]
    return f"test_broken.py:{first + offset} in "


def assert_refused(entry, world, run):
    step, arguments = entry.make(world)
    before = snapshot(world)
    with pytest.raises(entry.error) as caught:
        run(step)(*arguments)
    assert type(caught.value) is entry.error
    assert snapshot(world) == before
    return str(caught.value), arguments


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_is_refused_while_tracing(entry, world):
    message, arguments = assert_refused(
        entry, world, lambda step: rx.function(step, donate=entry.donate)
    )
    for text in (*entry.says, *entry.fault_lines()):
        assert text in message
    for text in entry.silent:
        assert text not in message
    # Nothing ran, so nothing was donated.
    assert not any(
        leaf.is_deleted() for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)
    )
    assert_correct_step_works(world)


@pytest.mark.slow
@pytest.mark.parametrize("entry", EAGER, ids=lambda entry: entry.name)
def test_is_found_by_the_eager_runner(entry, world):
    message, _ = assert_refused(entry, world, lambda step: step)
    named = [text for text in entry.says if text.startswith(("variable", "`"))]
    assert named
    for text in named:
        assert text in message
    if "largest difference" in message:
        assert entry.fault_lines()[-1] in message  # The line that wrote.
    else:
        assert not entry.fault_lines()
    for text in entry.silent:
        assert text not in message
    assert_correct_step_works(world)


# --- steps that fail only after some calls -------------------------------------------------------


def test_full_batches_run_before_the_padded_one_is_refused(world):
    def replica_step(batch):
        grad = jax.grad(lambda w: jnp.mean(per_row(w, batch)))(world.w.value)
        world.w.assign_sub(0.1 * rx.get_replica_context().all_reduce("mean", grad))

    step = rx.function(world.run(replica_step))
    w = np.asarray(world.w)
    for _ in range(2):
        step(world.batch)
        x, y = world.rows
        w = w - 0.1 * 2 * ((x @ w - y)[:, None] * x).mean(0)
    np.testing.assert_allclose(np.asarray(world.w), w, rtol=1e-5, atol=1e-6)
    before = snapshot(world)
    for _ in range(2):  # It is refused each time.
        with pytest.raises(errors.UnusedMaskError, match="variable `w`"):
            step(world.padded)
    assert snapshot(world) == before
    step(world.batch)  # The program of full batches is still there.
    assert snapshot(world) != before


def test_full_batches_run_before_the_padded_one_is_refused_with_donated_state(world):
    def replica_step(w, batch):
        grad = jax.grad(lambda w: jnp.mean(per_row(w["w"], batch)))(w)
        grad = rx.get_replica_context().all_reduce("mean", grad)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grad)

    @rx.function(donate="w")
    def donating(w, batch):
        return world.strategy.run(replica_step, args=(w, batch))

    state = donating(donating({"w": jnp.ones(3)}, world.batch), world.batch)
    with pytest.raises(errors.UnusedMaskError, match=r"argument `batch\.x`"):
        donating(state, world.padded)
    assert not state["w"].is_deleted()
    assert donating(state, world.batch)["w"].shape == (3,)


def test_varying_result_fed_back_as_a_mirrored_argument(world):
    @rx.function
    def step(w, batch):
        return world.strategy.run(
            lambda w, batch: w - jax.grad(lambda w: per_row(w, batch).mean())(w), args=(w, batch)
        )

    after = step(jnp.ones(3), world.batch)
    assert isinstance(after, rx.PerReplica)
    with pytest.raises(errors.VaryingWriteError) as caught:
        step(after, world.batch)
    message = str(caught.value)
    assert "State `w` goes into `step` mirrored" in message
    assert "the last result" in message
    assert "argument `batch.x`" in message
    assert_correct_step_works(world)


# --- primitives that the proof does not know -----------------------------------------------------


def new_primitive(name):
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: x * 2, multiple_results=False))
    return primitive


def step_with(primitive, world):
    def replica_step(batch):
        mean = rx.get_replica_context().global_mean(batch.x)
        world.w.assign(primitive.bind(mean))  # fault

    return world.run(replica_step), line_of(step_with, "# fault")


def test_unknown_primitive_is_refused_then_registered(world):
    primitive = new_primitive("corpus_doubled")
    step, line = step_with(primitive, world)
    step = rx.function(step)
    before = snapshot(world)
    with pytest.raises(errors.UnprovenError) as caught:
        step(world.batch)
    message = str(caught.value)
    assert "`corpus_doubled`" in message
    assert line in message
    assert 'register_primitive("corpus_doubled", "pointwise")' in message
    assert snapshot(world) == before
    rx.register_primitive("corpus_doubled", "pointwise")
    step(world.batch)
    expected = 2 * world.rows.x.mean(0)
    np.testing.assert_allclose(np.asarray(world.w), expected, rtol=1e-5, atol=1e-6)
    assert_correct_step_works(world)


def test_primitive_registered_as_varying_is_a_varying_write(world):
    primitive = new_primitive("corpus_varying")
    rx.register_primitive("corpus_varying", "varying")
    step, line = step_with(primitive, world)
    with pytest.raises(errors.VaryingWriteError) as caught:
        rx.function(step)(world.batch)
    assert "`corpus_varying`, registered as varying" in str(caught.value)
    assert line in str(caught.value)


# --- what the eager runner says ------------------------------------------------------------------


def test_eager_names_the_largest_difference_of_each_replica(world):
    def replica_step():
        replica = rx.get_replica_context().replica_id_in_sync_group
        if replica != 2:
            world.w.assign(jnp.array([0.0, 1.0, 2.0 + 0.5 * replica]))  # fault

    before = snapshot(world)
    with pytest.raises(errors.VaryingWriteError) as caught:
        world.strategy.run(replica_step)
    message = str(caught.value)
    assert "largest difference to replica 0" in message
    rows = [line.split() for line in message.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert [row[-1] for row in rows] == ["0", "0.5", "1", "1.5"]  # Replica 2 kept 1 at the end.
    assert (
        message.count(line_of(test_eager_names_the_largest_difference_of_each_replica, "# fault"))
        == 3
    )
    assert "did not write it" in message
    assert snapshot(world) == before
    assert_correct_step_works(world)


def test_eager_different_collectives_name_both_lines(world):
    def replica_step():
        ctx = rx.get_replica_context()
        if ctx.replica_id_in_sync_group == 1:
            return ctx.all_gather(world.w.value, axis=0)  # one
        return ctx.all_reduce("sum", world.w.value)  # other

    with pytest.raises(errors.CollectiveMismatchError) as caught:
        world.strategy.run(replica_step)
    message = str(caught.value)
    for text in ("all_gather", "all_reduce"):
        assert text in message
    for mark in ("# one", "# other"):
        assert line_of(test_eager_different_collectives_name_both_lines, mark) in message
    assert_correct_step_works(world)


def test_eager_collective_of_the_first_replica_alone(world):
    def replica_step():
        ctx = rx.get_replica_context()
        if ctx.replica_id_in_sync_group == 0:
            ctx.all_reduce("sum", world.w.value)  # fault

    with pytest.raises(errors.CollectiveMismatchError) as caught:
        world.strategy.run(replica_step)
    assert line_of(test_eager_collective_of_the_first_replica_alone, "# fault") in str(caught.value)
    assert_correct_step_works(world)


def test_eager_state_that_differs_comes_back_per_replica(world):
    """In eager, functional state has no name; that it differs is seen by its type."""

    def replica_step(w, batch):
        grads = jax.grad(lambda w: per_row(w, batch).mean())(w)
        reduced = rx.get_replica_context().all_reduce("mean", grads)
        return {"reduced": w - reduced, "local": w - grads}

    state = world.strategy.run(replica_step, args=(jnp.zeros(3), world.batch))
    assert isinstance(state["reduced"], jax.Array)
    assert isinstance(state["local"], rx.PerReplica)


def test_the_corpus_is_whole():
    names = [entry.name for entry in ENTRIES]
    assert len(names) == len(set(names)) >= 35
    assert len(EAGER) >= 15
