"""Arguments of stages, checked where they are given."""

from __future__ import annotations

from typing import Any

from replicax import errors

MAX_SEED = 2**64


def count(value: Any, name: str, *, least: int = 0, below: int | None = None) -> int:
    """A whole number in a range.

    Raises:
        ArgumentTypeError: It is no integer.
        InvalidArgumentError: It is out of the range.
    """
    bounds = f"of at least {least}" if below is None else f"from {least} to {below - 1}"
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`{name}` = {value!r} is no integer.", fix=f"Pass an integer {bounds}."
            )
        )
    number = int(value.__index__())
    if number < least or (below is not None and number >= below):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`{name}` = {value!r} is out of range.", fix=f"Pass an integer {bounds}."
            )
        )
    return number


def function(value: Any, name: str) -> None:
    """Refuse what cannot be called.

    Raises:
        ArgumentTypeError: It cannot.
    """
    if not callable(value):
        raise errors.ArgumentTypeError(
            errors.describe(f"`{name}` = {value!r} is no function.", fix="Pass a function.")
        )
