"""Positions of iterators, and the datasets in which they mean something."""

from __future__ import annotations

from typing import Any

from replicax import errors
from replicax.input._words import counted

_KEYS = {"epoch", "step", "source"}


def is_state(state: Any) -> bool:
    """Whether this has the form of what `DistributedIterator.get_state` returns."""
    if not isinstance(state, dict) or set(state) != _KEYS:
        return False
    numbers = (state["epoch"], state["step"])
    return all(isinstance(number, int) and number >= 0 for number in numbers)


def check_same_source(theirs: Any, ours: dict[str, Any]) -> None:
    """Make sure that a position of another run means the same rows here.

    Raises:
        InvalidArgumentError: The facts of the sources differ.
    """
    if theirs == ours:
        return
    theirs = theirs if isinstance(theirs, dict) else {}
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    raise errors.InvalidArgumentError(
        errors.describe(
            "The state belongs to another dataset.",
            table=errors.Table(
                ("fact", "state", "dataset"),
                [(name, theirs.get(name), ours.get(name)) for name in names],
            ),
            why="A step number means other rows there: its elements, batch size or order differ.",
            fix="Make the dataset as it was when the state was taken, with the same seed.",
        )
    )


def cannot_go_back(step: int, taken: int) -> errors.FailedPreconditionError:
    """The error of a source that was read further."""
    return errors.FailedPreconditionError(
        errors.describe(
            f"The iterator was set to step {step}, but {counted(taken, 'step was', 'steps were')} "
            "taken from its source.",
            why="The source is an iterator, such as a generator, and cannot be set.",
            fix="Distribute something that can be iterated again, or a new iterator.",
        )
    )
