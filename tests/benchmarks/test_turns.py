"""Programs of several libraries train in turns, when they are asked to."""

from __future__ import annotations

import sys

import pytest

PROGRAM = """
import sys
sys.path.append({folder!r})
from serving import answers, serve

out = answers()

def contender(name):
    trained = 0
    def advance(steps):
        nonlocal trained
        trained += steps
        if name == "one that fails":
            sys.exit("This library has no such thing.")
        return float(trained)
    return lambda: advance

print("what a library says")
serve({{name: contender(name) for name in {names!r}}}, "a library 1.0", out)
"""


@pytest.fixture
def command(tmp_path):
    from serving import __file__ as serving

    folder = serving.removesuffix("/serving.py")

    def written(*names):
        file = tmp_path / f"{names[0].replace(' ', '_')}.py"
        file.write_text(PROGRAM.format(folder=folder, names=list(names)))
        return [sys.executable, "-S", str(file)]

    return written


def test_each_has_its_turn_in_each_round_and_the_loss_is_that_after_20_steps(command):
    from asking import alternate, running

    with running([command("a", "left out"), command("b")], processes=1) as programs:
        figures = alternate(programs, ["a", "b"], rounds=3)

    assert {name: len(each) for name, each in figures.seconds.items()} == {"a": 3, "b": 3}
    assert figures.losses == {"a": 21.0, "b": 21.0}  # of the step after them
    assert figures.versions == ["a library 1.0", "a library 1.0"]


def test_two_processes_are_asked_together(command):
    from asking import Program

    program = Program(command("a"), processes=2)
    try:
        seconds, loss = program.ask("a", 5)
    finally:
        program.stop()

    assert loss == 5
    assert seconds >= 0


def test_a_program_that_ends_is_named_with_its_last_words(command):
    from asking import alternate, running

    with (
        pytest.raises(SystemExit, match=r"(?s)one_that_fails\.py ended.*no such thing"),
        running([command("one that fails")], processes=1) as programs,
    ):
        alternate(programs, None, rounds=1)
