"""Every broken program is broken, and an error or `rx.verify` names its fault."""

from __future__ import annotations

import numpy as np
import pytest

from .programs import load, missing, names, verdict

ONE_PROCESS = names("broken")
EVERY = sorted(ONE_PROCESS + names("broken", workers=2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_PROCESS)
def test_the_fault_is_named(name):
    program = load("broken", name)
    said = verdict(program)
    assert not missing(program, said), f"{said.by}: {said.text}"


@pytest.mark.parametrize("name", EVERY)
def test_its_numbers_are_not_those_of_one_device(name):
    program = load("broken", name)
    if not hasattr(program, "figures"):
        assert program.__doc__.count("\n\n") == 1, "it says neither in words nor in numbers why"
        return
    wrong, right = program.figures()
    assert not np.allclose(wrong, right, rtol=1e-3)


def test_there_are_many():
    assert len(EVERY) >= 25
