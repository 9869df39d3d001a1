"""Values wait for variables that are created after `restore`."""

from __future__ import annotations

import gc
import logging
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax import errors
from replicax.checkpoint import Checkpoint


@pytest.fixture(autouse=True)
def nothing_waits_afterwards():
    """A test's values must not wait for variables of other tests."""
    from replicax.values import _deferred

    before = list(_deferred._RESOLVERS)
    yield
    for resolver in set(_deferred._RESOLVERS) - set(before):
        _deferred.unregister(resolver)


class Model:
    """Makes its variables when it is first used."""

    def __init__(self, size=2):
        self.size = size
        self.w = None
        self.count = None

    def build(self):
        self.w = rx.Variable(np.zeros(self.size, np.float32), name="w")
        self.count = rx.Variable(0, synchronization="on_read", aggregation="sum", name="count")

    def __call__(self, x):
        if self.w is None:
            self.build()
        return (self.w * x).sum()


@pytest.fixture
def saved(path, strategies):
    with strategies[4].scope():
        model = Model()
        model.build()
    model.w.assign([1.5, 2.5])
    model.count.assign(7)
    Checkpoint(model=model).save(path)
    return path


@pytest.mark.parametrize("replicas", [1, 3])
def test_variables_that_are_created_later_have_their_values(saved, strategies, replicas):
    model = Model()
    status = Checkpoint(model=model).restore(saved)
    assert status.pending == ("model.count", "model.w")
    with strategies[replicas].scope():
        model.build()

    assert model.w.value.tolist() == [1.5, 2.5]
    assert int(model.count) == 7
    assert status.pending == ()
    status.assert_consumed()


def test_the_first_write_comes_after_the_value(saved):
    model = Model()
    Checkpoint(model=model).restore(saved)
    model.build()
    model.w.assign_add([1.0, 1.0])

    assert model.w.value.tolist() == [2.5, 3.5]


def test_a_write_is_not_undone_by_a_later_creation(saved):
    model = Model()
    Checkpoint(model=model).restore(saved)
    model.w = rx.Variable(jnp.zeros(2))
    model.w.assign([9.0, 9.0])
    model.count = rx.Variable(0)

    assert int(model.count) == 7
    assert model.w.value.tolist() == [9.0, 9.0]


def test_a_variable_that_was_built_before_the_first_step(saved, strategy, runner):
    model = Model()
    Checkpoint(model=model).restore(saved)
    with strategy.scope():
        model.build()
    step = runner(lambda: strategy.reduce("mean", strategy.run(lambda: model(2.0)), axis=None))

    assert float(step()) == 8.0


def test_a_variable_that_the_first_step_creates(saved, strategy, runner):
    model = Model()
    Checkpoint(model=model).restore(saved)
    with strategy.scope():
        step = runner(lambda: strategy.reduce("mean", strategy.run(lambda: model(2.0)), axis=None))

        assert float(step()) == 8.0


def test_a_write_of_the_step_that_creates_a_variable_stays(saved, strategy, runner):
    model = Model()
    Checkpoint(model=model).restore(saved)

    def step():
        if model.w is None:
            model.build()
        model.w.assign([9.0, 9.0])

    with strategy.scope():
        runner(lambda: strategy.run(step))()
        _ = rx.Variable(0)

    assert model.w.value.tolist() == [9.0, 9.0]


def test_a_variable_that_is_attached_after_others_were_used(saved):
    model = Model()
    Checkpoint(model=model).restore(saved)
    w, other = rx.Variable(np.zeros(2, np.float32)), rx.Variable(0.0)
    assert float(other) == 0.0
    model.w = w

    assert w.value.tolist() == [1.5, 2.5]


def test_parts_that_are_attached_later(saved, part):
    model = part()
    Checkpoint(root=model).restore(saved)  # other paths: nothing fits
    w = rx.Variable(jnp.zeros(2))
    model.model = part(w=w)
    assert w.value.tolist() == [0, 0]

    status = Checkpoint(model=part(w=w, size=0)).restore(saved)
    assert w.value.tolist() == [1.5, 2.5]
    assert status.pending == ("model.count",)


def test_a_variable_in_a_list_that_grows(path):
    layers = [rx.Variable(float(i)) for i in range(3)]
    Checkpoint(layers=layers).save(path)
    grown = []
    status = Checkpoint(layers=grown).restore(path)
    grown.append(rx.Variable(-1.0))
    grown.extend(rx.Variable(-1.0) for _ in range(2))

    assert [float(v) for v in grown] == [0, 1, 2]
    status.assert_consumed()


def test_another_shape_is_an_error_at_the_first_use_and_at_each_later_one(saved):
    model = Model(size=2)
    keeper = Checkpoint(model=model)
    keeper.restore(saved)
    model.size = 3
    model.build()

    for _ in range(2):
        with pytest.raises(errors.InvalidArgumentError, match=r"float32\[2\] +float32\[3\]"):
            _ = model.w.value
    model.w = rx.Variable(jnp.zeros(2))
    assert model.w.value.tolist() == [1.5, 2.5]
    assert int(model.count) == 7


def test_arrays_and_numbers_that_appear_later_are_not_touched(path, part):
    Checkpoint(model=part(w=rx.Variable(1), epoch=5)).save(path)
    model = part()
    status = Checkpoint(model=model).restore(path)
    model.epoch = 0
    model.w = rx.Variable(0)

    assert int(model.w) == 1
    assert model.epoch == 0
    assert status.pending == ("model.epoch",)
    with pytest.raises(errors.InvalidArgumentError, match=r"model\.epoch"):
        status.assert_existing_objects_matched()


def test_assert_consumed_lists_what_was_not_used(path):
    Checkpoint(a=1, b=rx.Variable(2), c=3).save(path)
    status = Checkpoint(a=0).restore(path)

    assert status.assert_existing_objects_matched() is status
    assert status.expect_partial() is status
    with pytest.raises(errors.InvalidArgumentError, match="2 values") as caught:
        status.assert_consumed()
    assert [line.strip() for line in str(caught.value).splitlines()][2:4] == ["b", "c"]


def test_a_new_variable_that_the_checkpoint_does_not_hold(saved, part):
    model = Model()
    status = Checkpoint(model=model).restore(saved)
    model.build()
    model.new = rx.Variable(3.0)

    assert float(model.new) == 3.0
    with pytest.raises(errors.InvalidArgumentError, match=r"model\.new"):
        status.assert_existing_objects_matched()
    with pytest.raises(errors.InvalidArgumentError, match=r"model\.new"):
        status.assert_consumed()


def test_another_restore_ends_the_waiting_of_the_one_before(tmp_path, part, caplog):
    for number in (1, 2):
        Checkpoint(m=part(a=rx.Variable(number), b=rx.Variable(number))).save(
            tmp_path / f"{number}"
        )
    model = part()
    checkpoint = Checkpoint(m=model)
    checkpoint.restore(tmp_path / "1")
    with caplog.at_level(logging.WARNING, "replicax"):
        checkpoint.restore(tmp_path / "2")
    model.a = rx.Variable(0)

    assert int(model.a) == 2
    assert "m.a, m.b" in caplog.text
    caplog.clear()
    checkpoint.restore(tmp_path / "1").expect_partial()  # a warning about the second, for `b`
    checkpoint.restore(tmp_path / "2")
    assert caplog.text.count("expect_partial") == 1


def test_a_failed_restore_leaves_the_one_before_waiting(saved, tmp_path):
    Checkpoint(other=1).save(tmp_path / "other")
    model = Model()
    checkpoint = Checkpoint(model=model)
    checkpoint.restore(saved)
    with pytest.raises(errors.InvalidArgumentError, match=r"model\.size +missing"):
        checkpoint.restore(tmp_path / "other")
    model.build()

    assert model.w.value.tolist() == [1.5, 2.5]


def test_waiting_outlives_the_checkpoint_but_not_the_model(saved):
    from replicax.values import _deferred

    model = Model()
    Checkpoint(model=model).restore(saved)
    gc.collect()
    other = Model()
    Checkpoint(model=other).restore(saved)
    model.build()
    assert model.w.value.tolist() == [1.5, 2.5]

    gone = weakref.ref(other)
    waiting = len(_deferred._RESOLVERS)
    del other
    gc.collect()
    _ = rx.Variable(0).value
    assert gone() is None
    assert len(_deferred._RESOLVERS) == waiting - 1
