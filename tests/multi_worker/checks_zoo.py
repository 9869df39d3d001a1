"""The programs of `tests/zoo` that take two workers."""

from __future__ import annotations

from typing import Any

from checks import Job, check
from zoo import programs


@check
def faults_of_the_zoo_are_named(_job: Job) -> Any:
    names = programs.names("broken", workers=2)
    for name in names:
        program = programs.load("broken", name)
        said = programs.verdict(program)
        assert not programs.missing(program, said), f"{name}: {said.by}: {said.text}"
    return len(names)


@check
def nothing_is_said_against_correct_programs_of_the_zoo(_job: Job) -> Any:
    names = programs.names("correct", workers=2)
    for name in names:
        said = programs.verdict(programs.load("correct", name))
        assert not said.text, f"{name}: {said.text}"
    return len(names)
