"""Options of distributed input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from replicax import errors

Remainder = Literal["mask", "drop", "error"]


@dataclass(frozen=True)
class InputOptions:
    """How a dataset is shared out over the replicas.

    Attributes:
        global_batch_size: Rows of a global batch. Only for datasets that are arrays; other
            datasets yield global batches themselves.
        remainder: What to do with a global batch whose rows cannot be shared out evenly:
            `"mask"` keeps every row, pads in compiled steps and masks the padding; `"drop"`
            leaves the rows out that are too many; `"error"` raises.

    Raises:
        InvalidArgumentError: A size below 1, or an unknown rule.

    Examples:
        >>> import replicax as rx
        >>> rx.InputOptions(global_batch_size=32).remainder
        'mask'
    """

    global_batch_size: int | None = None
    remainder: Remainder = "mask"

    def __post_init__(self) -> None:
        """Check the values."""
        size = self.global_batch_size
        is_integer = hasattr(size, "__index__") and not isinstance(size, bool)
        if size is not None and (not is_integer or size < 1):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`global_batch_size` = {size!r} is not a positive integer.",
                    fix="Pass the number of rows that all replicas together take in a step.",
                )
            )
        if self.remainder not in get_args(Remainder):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`remainder` = {self.remainder!r} is unknown.",
                    fix=f"Pass one of {', '.join(map(repr, get_args(Remainder)))}.",
                )
            )


def checked_options(options: InputOptions | None) -> InputOptions:
    """Return the options, or the default ones for None.

    Raises:
        ArgumentTypeError: They are something else.
    """
    if options is None:
        return InputOptions()
    if isinstance(options, InputOptions):
        return options
    raise errors.ArgumentTypeError(
        errors.describe(
            f"`options` = {options!r} are not input options.",
            fix="Pass `rx.InputOptions(...)`.",
        )
    )
