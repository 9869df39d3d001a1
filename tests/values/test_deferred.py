"""Resolvers are called when something was created, and only then."""

from __future__ import annotations

import pytest

from replicax.values import _deferred


class Thing:
    """Stands for a variable."""


@pytest.fixture
def calls():
    """A registered resolver's calls; it is done once `done` is among them.

    Restores of other tests may still wait for variables; they are set aside.
    """
    made = []
    waiting = tuple(_deferred._RESOLVERS)
    for resolver in waiting:
        _deferred.unregister(resolver)

    def resolver():
        made.append("call")
        return "done" in made

    _deferred.register(resolver)
    yield made
    _deferred.unregister(resolver)
    for resolver in waiting:
        _deferred.register(resolver)


def test_settling_looks_only_after_something_was_created(calls):
    _deferred.settle()
    _deferred.settle()
    assert len(calls) == 1
    _deferred.note_creation()
    _deferred.settle()
    _deferred.settle()
    assert len(calls) == 2


def test_a_variable_is_looked_for_until_it_is_placed(calls):
    variable = Thing()
    _deferred.note_creation(variable)
    _deferred.settle()
    _deferred.settle()
    assert len(calls) == 2
    _deferred.note_placed(variable)
    _deferred.settle()
    assert len(calls) == 2


def test_a_variable_that_is_gone_is_not_looked_for(calls):
    variable = Thing()
    _deferred.note_creation(variable)
    _deferred.settle()
    del variable
    _deferred.settle()

    assert len(calls) == 1


def test_a_resolver_that_is_done_is_called_no_more(calls):
    calls.append("done")
    _deferred.settle()
    _deferred.note_creation()
    _deferred.settle()

    assert calls == ["done", "call"]


def test_settling_inside_a_resolver_does_nothing():
    calls = []

    def resolver():
        calls.append("call")
        _deferred.note_creation()
        _deferred.settle()
        return True

    _deferred.register(resolver)
    _deferred.settle()

    assert calls == ["call"]


def test_what_a_resolver_raises_is_raised_each_time():
    def resolver():
        raise ValueError("another shape")

    _deferred.register(resolver)
    try:
        for _ in range(2):
            with pytest.raises(ValueError, match="another shape"):
                _deferred.settle()
    finally:
        _deferred.unregister(resolver)
    _deferred.settle()
