"""No correct program is warned of."""

from __future__ import annotations

import pytest

from .programs import load, names, verdict

ONE_PROCESS = names("correct")


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_PROCESS)
def test_nothing_is_said_against_it(name):
    said = verdict(load("correct", name))
    assert not said.text, said.text


def test_there_are_many():
    assert len(ONE_PROCESS) + len(names("correct", workers=2)) >= 25
