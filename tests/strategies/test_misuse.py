"""Calls that end in a bare assertion, attribute or index error in tf.distribute.

Here each ends in an error of `rx.errors` whose message says what to do, or works. Left out is what
belongs to parts that are not built yet: several workers, TPUs, parameter servers, the coordinator,
cluster resolvers and the checkpoint manager. Reads of rows, for which tf.distribute's variables
lack `sparse_read` and `gather_nd`, are written `v[indices]` here.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax import errors

ONE_OF_EACH = rx.PerReplica([1.0, 20.0])


@pytest.fixture
def given(strategy, other, tmp_path):
    """What the calls below act on."""
    with strategy.scope():
        mirrored = rx.Variable(1.0, name="v")
        summed = rx.Variable(1.0, name="s", synchronization="on_read", aggregation="sum")
        averaged = rx.Variable(1.0, name="m", synchronization="on_read", aggregation="mean")
        own = rx.Variable(1.0, name="o", synchronization="on_read")
    with other.scope():
        foreign = rx.Variable(1.0, name="f")
    return SimpleNamespace(
        strategy=strategy,
        extended=strategy.extended,
        v=mirrored,
        summed=summed,
        averaged=averaged,
        own=own,
        foreign=foreign,
        plain=rx.Variable(1.0, name="p"),
        path=tmp_path / "checkpoint",
    )


@dataclass(frozen=True)
class Misuse:
    """One wrong call.

    Attributes:
        words: What is wrong.
        call: The call.
        error: The class of the error.
        mentions: A part of the message: what the call was about.
        eager_only: Whether only the eager runner can make the mistake.
    """

    words: str
    call: Callable[[Any], Any]
    error: type[errors.ReplicaxError]
    mentions: str = ""
    eager_only: bool = False


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def restore_more_than_there_is(given):
    rx.checkpoint.Checkpoint(v=given.v, extra=given.plain).save(given.path)
    status = rx.checkpoint.Checkpoint(v=given.v).restore(given.path)
    try:
        status.assert_consumed()
    finally:
        status.expect_partial()


MISUSES = [
    # -- 1.2 Strategy
    Misuse(
        "run: the replicas return dictionaries with different keys",
        lambda g: g.strategy.run(lambda: {"ab"[replica_id()]: 1.0}),
        errors.StructureMismatchError,
        "replica",
        eager_only=True,
    ),
    Misuse(
        "run: the replicas return tuples of different lengths",
        lambda g: g.strategy.run(lambda: (1.0,) * (1 + replica_id())),
        errors.StructureMismatchError,
        "replica",
        eager_only=True,
    ),
    Misuse(
        "run: the replicas return different types of containers",
        lambda g: g.strategy.run(lambda: [(1.0,), [1.0]][replica_id()]),
        errors.StructureMismatchError,
        "replica",
        eager_only=True,
    ),
    Misuse(
        "run: one replica returns nothing",
        lambda g: g.strategy.run(lambda: jnp.ones(1) if replica_id() else None),
        errors.StructureMismatchError,
        "replica",
        eager_only=True,
    ),
    Misuse(
        "run: a per-replica value with more components than replicas",
        lambda g: g.strategy.run(lambda x: x, args=(rx.PerReplica([1.0, 2.0, 3.0]),)),
        errors.InvalidArgumentError,
        "3 components",
    ),
    Misuse(
        "run: a variable that was created outside of the scope",
        lambda g: g.strategy.run(lambda: g.plain.assign(1.0)),
        errors.MixedStrategiesError,
        "`p`",
    ),
    Misuse(
        "run: a variable of another strategy",
        lambda g: g.strategy.run(lambda: g.foreign.value),
        errors.MixedStrategiesError,
        "`f`",
    ),
    # -- 1.3 StrategyExtended
    Misuse(
        "reduce_to: a list of destinations",
        lambda g: g.extended.reduce_to("sum", ONE_OF_EACH, ["cpu:0", "cpu:1"]),
        errors.ArgumentTypeError,
        "destinations",
    ),
    Misuse(
        "reduce_to: no destinations",
        lambda g: g.extended.reduce_to("sum", ONE_OF_EACH, None),
        errors.ArgumentTypeError,
        "destinations",
    ),
    Misuse(
        "reduce_to: a VariableAggregation as the op",
        lambda g: g.extended.reduce_to(rx.VariableAggregation.SUM, ONE_OF_EACH, g.v),
        errors.ArgumentTypeError,
        "VariableAggregation.SUM",
    ),
    Misuse(
        "reduce_to: the sum of a mirrored value",
        lambda g: g.extended.reduce_to("sum", rx.Mirrored(jnp.float32(1)), g.v),
        errors.InvalidArgumentError,
    ),
    Misuse(
        "batch_reduce_to: values without destinations",
        lambda g: g.extended.batch_reduce_to("sum", [ONE_OF_EACH, ONE_OF_EACH]),
        errors.ArgumentTypeError,
        "batch_reduce_to",
    ),
    Misuse(
        "broadcast_to: a list of destinations",
        lambda g: g.extended.broadcast_to(1.0, ["cpu:0", "cpu:1"]),
        errors.ArgumentTypeError,
        "destinations",
    ),
    Misuse(
        "update: a variable that was created outside of the scope",
        lambda g: g.extended.update(g.plain, lambda v: v.assign(1.0)),
        errors.InvalidArgumentError,
        "`p`",
    ),
    Misuse(
        "update: a variable of another strategy",
        lambda g: g.extended.update(g.foreign, lambda v: v.assign(1.0)),
        errors.InvalidArgumentError,
        "`f`",
    ),
    Misuse(
        "update: an array",
        lambda g: g.extended.update(jnp.ones(2), lambda v: v),
        errors.InvalidArgumentError,
        "update",
    ),
    Misuse(
        "update: no function",
        lambda g: g.extended.update(g.v, 3.0),
        errors.ArgumentTypeError,
        "update",
    ),
    # -- 1.5 Strategies
    Misuse(
        "MirroredStrategy: the same device twice",
        lambda g: rx.MirroredStrategy(["cpu:0", "cpu:0"]),
        errors.InvalidArgumentError,
        "cpu:0",
    ),
    Misuse(
        "CentralStorageStrategy: the same device twice",
        lambda g: rx.CentralStorageStrategy(["cpu:1", "CPU:1"]),
        errors.InvalidArgumentError,
        "1",
    ),
    # -- 2.2 Variables
    Misuse(
        "reduce: the sum of a mirrored variable",
        lambda g: g.strategy.reduce("sum", g.v, axis=None),
        errors.InvalidArgumentError,
    ),
    Misuse(
        "assign: a per-replica value to a mirrored variable",
        lambda g: g.v.assign(ONE_OF_EACH),
        errors.VaryingWriteError,
        "`v.assign`",
    ),
    Misuse(
        "assign: a per-replica value of another shape to a sync-on-read variable",
        lambda g: g.averaged.assign(rx.PerReplica([jnp.ones(2), jnp.ones(2)])),
        errors.InvalidArgumentError,
        "`m.assign`",
    ),
    Misuse(
        "assign: a per-replica value with too few components to a sync-on-read variable",
        lambda g: g.own.assign(rx.PerReplica([1.0])),
        errors.InvalidArgumentError,
        "`o.assign`",
    ),
    Misuse(
        "assign_add: a per-replica value to a sync-on-read variable",
        lambda g: g.averaged.assign_add(ONE_OF_EACH),
        errors.VaryingWriteError,
        "`m.assign_add`",
    ),
    Misuse(
        "assign_sub: a per-replica value to a sum that is read across replicas",
        lambda g: g.summed.assign_sub(ONE_OF_EACH),
        errors.VaryingWriteError,
        "`s.assign_sub`",
    ),
    Misuse(
        "assign: None",
        lambda g: g.v.assign(None),
        errors.ArgumentTypeError,
        "`v.assign`",
    ),
    Misuse(
        "assign: a string",
        lambda g: g.summed.assign("text"),
        errors.ArgumentTypeError,
        "`s.assign`",
    ),
    Misuse(
        "a read of a sync-on-read variable without aggregation",
        lambda g: g.own + 1.0,
        errors.InvalidArgumentError,
        "`o`",
    ),
    Misuse(
        "scatter_add: an array in place of IndexedSlices",
        lambda g: g.v.scatter_add(jnp.ones(2)),
        errors.ArgumentTypeError,
        "IndexedSlices",
    ),
    # -- 2.4 Checkpoints
    Misuse(
        "assert_consumed: the checkpoint holds more than the objects",
        restore_more_than_there_is,
        errors.InvalidArgumentError,
        "extra",
        eager_only=True,
    ),
    # -- 4 reduce and gather
    Misuse(
        "reduce: no op",
        lambda g: g.strategy.reduce(None, ONE_OF_EACH, axis=None),
        errors.ArgumentTypeError,
        "None",
    ),
    Misuse(
        "reduce: a VariableAggregation as the op",
        lambda g: g.strategy.reduce(rx.VariableAggregation.MEAN, ONE_OF_EACH, axis=None),
        errors.ArgumentTypeError,
        "VariableAggregation.MEAN",
    ),
    Misuse(
        "reduce: the sum of a Python number",
        lambda g: g.strategy.reduce("sum", 0.0, axis=None),
        errors.InvalidArgumentError,
        "0.0",
    ),
    Misuse(
        "reduce: the sum of a NumPy number",
        lambda g: g.strategy.reduce("sum", np.float32(2), axis=None),
        errors.InvalidArgumentError,
    ),
    Misuse(
        "reduce: the sum of a mirrored value",
        lambda g: g.strategy.reduce("sum", rx.Mirrored(jnp.float32(1)), axis=None),
        errors.InvalidArgumentError,
    ),
    Misuse(
        "reduce: strings",
        lambda g: g.strategy.reduce("sum", rx.PerReplica(["a", "b"]), axis=None),
        errors.ArgumentTypeError,
    ),
    Misuse(
        "gather: an axis that is not there",
        lambda g: g.strategy.gather(rx.PerReplica([jnp.ones(2), jnp.ones(2)]), axis=1),
        errors.InvalidArgumentError,
        "1",
    ),
    Misuse(
        "all_reduce: no op",
        lambda g: g.strategy.run(lambda: rx.get_replica_context().all_reduce(None, 1.0)),
        errors.ArgumentTypeError,
        "None",
    ),
    Misuse(
        "all_reduce: a string",
        lambda g: g.strategy.run(lambda: rx.get_replica_context().all_reduce("sum", "text")),
        errors.ArgumentTypeError,
        "text",
    ),
    Misuse(
        "all_gather: a number",
        lambda g: g.strategy.run(lambda: rx.get_replica_context().all_gather(1.0, axis=0)),
        errors.InvalidArgumentError,
    ),
]


def runs():
    for misuse in MISUSES:
        yield pytest.param(misuse, lambda step: step, id=f"eager: {misuse.words}")
        if not misuse.eager_only:
            yield pytest.param(misuse, rx.function, id=f"compiled: {misuse.words}")


@pytest.mark.parametrize(("misuse", "runner"), [*runs()])
def test_it_ends_in_an_error_that_says_what_to_do(given, misuse, runner):
    with pytest.raises(errors.ReplicaxError) as caught:
        runner(lambda: misuse.call(given))()
    error = caught.value
    assert isinstance(error, misuse.error), type(error)
    assert not isinstance(error, (AssertionError, AttributeError, IndexError))
    assert misuse.mentions in error.message
    assert "What to do: " in error.message
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 # our own bytes
    assert (type(copied), str(copied)) == (type(error), str(error))


# -- what works here ------------------------------------------------------------------------------


def test_a_per_replica_value_can_be_assigned_to_a_sync_on_read_variable(given):
    given.summed.assign(ONE_OF_EACH)
    assert float(given.summed) == 21.0


def test_numbers_can_be_reduced_in_a_replica(run):
    assert float(run(lambda: rx.get_replica_context().all_reduce("sum", 1.0))) == 2.0


def test_the_mean_of_a_number_is_the_number(strategy):
    assert float(strategy.reduce("mean", 0.5, axis=None)) == 0.5


def test_nothing_has_nothing_to_reduce(run):
    assert run(lambda: rx.get_replica_context().all_reduce("sum", None)) is None


def test_input_options_are_taken_under_central_storage():
    strategy = rx.CentralStorageStrategy(["cpu:0", "cpu:1"])
    options = rx.InputOptions(global_batch_size=4)
    (batch,) = strategy.distribute_dataset(np.arange(4), options)
    assert [x.tolist() for x in strategy.local_results(batch)] == [[0, 1], [2, 3]]


def test_rows_of_a_variable_are_read_by_index(run, strategy):
    with strategy.scope():
        table = rx.Variable(np.arange(6.0).reshape(3, 2))
    indices = np.array([2, 0])
    np.testing.assert_array_equal(table[indices], [[4, 5], [0, 1]])
    np.testing.assert_array_equal(run(lambda: table[indices]), [[4, 5], [0, 1]])
