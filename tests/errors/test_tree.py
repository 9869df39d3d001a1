"""The exception tree: drawing, codes, pickling."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import replicax.errors as rx_errors
from replicax.errors import CallSite, Code, Origin, ReplicaxError

ORIGIN = Origin(job="worker", task=1, replica=3, step=20, call_site=CallSite("a.py", 7, "f"))


def walk(cls):
    """All classes below `cls` that the library defines, without repetition."""
    found = {}
    for below in cls.__subclasses__():
        if below.__module__.partition(".")[0] == "replicax":
            found |= {below.__name__: below} | {c.__name__: c for c in walk(below)}
    return list(found.values())


CLASSES = [ReplicaxError, *walk(ReplicaxError)]


def drawn():
    """Each line of the drawing as (depth, name, Python class, code, drawn elsewhere)."""
    line = re.compile(r"^    ([│├└─ ]*)(\w+Error)(?: \((\w+)\))? (\d+)( -> drawn below)?$")
    for text in rx_errors.__doc__.splitlines():
        found = line.match(text)
        if found:
            depth = len(found[1]) // 4
            yield depth, found[2], found[3], int(found[4]), bool(found[5])


def test_the_drawing_is_the_tree():
    parents = {}
    path = []
    for depth, name, python_class, code, elsewhere in drawn():
        del path[depth:]
        bases = parents.setdefault(name, set())
        bases |= {path[-1]} if path else set()
        bases |= {python_class} if python_class else set()
        assert getattr(rx_errors, name).code == code
        if not elsewhere:
            path.append(name)
    assert parents == {cls.__name__: {base.__name__ for base in cls.__bases__} for cls in CLASSES}


def test_the_drawing_has_no_line_that_the_test_cannot_read():
    assert len(list(drawn())) == sum("Error" in line for line in tree_lines())


def tree_lines():
    return [line for line in rx_errors.__doc__.splitlines() if line.startswith("    ")]


def test_every_code_but_ok_has_one_class():
    by_code = {code: rx_errors.error_class(code) for code in Code if code is not Code.OK}
    assert len(by_code) == 16
    assert all(cls.code is code for code, cls in by_code.items())
    words = {cls.__name__.removesuffix("Error").lower() for cls in by_code.values()}
    assert words == {code.name.replace("_", "").lower() for code in by_code}


@pytest.mark.parametrize("code", [Code.OK, 17, -1, "INTERNAL"])
def test_no_class_for_a_code_that_is_no_error(code):
    with pytest.raises(rx_errors.InvalidArgumentError, match="no error class"):
        rx_errors.error_class(code)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_class_is_public_and_says_what_it_means(cls):
    assert cls.__doc__.strip()
    assert "__doc__" in vars(cls)
    assert isinstance(cls.code, Code)
    if cls.__module__ == "replicax.errors":
        assert cls.__name__ in rx_errors.__all__
        assert getattr(rx_errors, cls.__name__) is cls


def same(copied, error):
    assert type(copied) is type(error)
    assert copied.args == error.args
    assert copied.__dict__ == error.__dict__
    assert (copied.message, copied.code, copied.origin) == (
        error.message,
        error.code,
        error.origin,
    )
    assert str(copied) == str(error)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_pickle_keeps_everything(cls, protocol):
    error = cls("what\nWhy: because", origin=ORIGIN)
    error.add_note("a note")
    error.remote_traceback = "Traceback ..."
    copied = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301
    same(copied, error)
    assert copied.__notes__ == ["a note"]


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_copies_are_equal_and_apart(cls, copier):
    error = cls("what", origin=ORIGIN)
    error.add_note("a note")
    copied = copier(error)
    same(copied, error)
    copied.add_note("another")
    assert error.__notes__ == ["a note"]


class OtherArgumentsError(rx_errors.DeadlineExceededError):
    """A subclass with its own `__init__`."""

    def __init__(self, seconds, *, worker):
        super().__init__(f"Waited {seconds} s for worker {worker}.")
        self.seconds = seconds


def test_a_subclass_with_other_arguments_pickles():
    error = OtherArgumentsError(3, worker=1)
    same(pickle.loads(pickle.dumps(error)), error)  # noqa: S301
    assert error.message == "Waited 3 s for worker 1."


@given(
    message=st.text(),
    step=st.none() | st.integers(),
    notes=st.lists(st.text(), max_size=3),
    cls=st.sampled_from(CLASSES),
)
def test_pickle_of_any_text(message, step, notes, cls):
    error = cls(message, origin=Origin(step=step))
    for note in notes:
        error.add_note(note)
    same(pickle.loads(pickle.dumps(error)), error)  # noqa: S301


def test_deadline_is_a_timeout_with_its_message():
    error = rx_errors.DeadlineExceededError("late", origin=Origin(task=1))
    assert isinstance(error, TimeoutError)
    assert error.message == "late"
    assert error.errno is None
    assert str(error) == "late\nWhere: task 1"


def test_lookup_error_shows_its_text_unquoted():
    assert str(rx_errors.NotFoundError("no such key")) == "no such key"
    assert issubclass(rx_errors.NotFoundError, LookupError)


def test_the_text_shows_an_origin_that_was_set_later():
    error = rx_errors.InternalError("what")
    assert str(error) == "what"
    error.origin = Origin(replica=2)
    assert str(error) == "what\nWhere: replica 2"
