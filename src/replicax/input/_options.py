"""Options of distributed input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from replicax import errors
from replicax.input._policies import AutoShardPolicy, InputReplicationMode

Remainder = Literal["mask", "drop", "error"]


@dataclass(frozen=True)
class InputOptions:
    """How a dataset is shared out over the replicas.

    Attributes:
        global_batch_size: Rows of a global batch, over all replicas of all input pipelines. Only
            for datasets that are arrays or yield rows; other datasets yield global batches
            themselves.
        remainder: What to do with a global batch whose rows cannot be shared out evenly:
            `"mask"` keeps every row, pads in compiled steps and masks the padding; `"drop"`
            leaves the rows out that are too many; `"error"` raises.
        policy: How several input pipelines share out the dataset; see `AutoShardPolicy`. Names
            are taken as well.
        prefetch: How many batches a background thread splits and places on the devices ahead of
            the step; 0 does it in the loop itself.
        replication_mode: How often `strategy.distribute_datasets_from_function` calls its
            function; see `InputReplicationMode`.

    Raises:
        InvalidArgumentError: A size below 1, a negative prefetch, or an unknown name.

    Examples:
        >>> import replicax as rx
        >>> rx.InputOptions(global_batch_size=32).remainder
        'mask'
        >>> rx.InputOptions(policy="data").policy
        <AutoShardPolicy.DATA: 2>
    """

    global_batch_size: int | None = None
    remainder: Remainder = "mask"
    policy: AutoShardPolicy | str = AutoShardPolicy.AUTO
    prefetch: int = 2
    replication_mode: InputReplicationMode | str = InputReplicationMode.PER_WORKER

    def __post_init__(self) -> None:
        """Check the values."""
        size = self.global_batch_size
        if size is not None and not _is_integer(size, least=1):
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
        if not _is_integer(self.prefetch, least=0):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`prefetch` = {self.prefetch!r} is not an integer from 0.",
                    fix="Pass the number of batches to place ahead of the step; 0 for none.",
                )
            )
        # Names become members, so that options compare equal however they were written.
        object.__setattr__(self, "policy", AutoShardPolicy.parse(self.policy))
        mode = InputReplicationMode.parse(self.replication_mode)
        object.__setattr__(self, "replication_mode", mode)


def _is_integer(value: Any, least: int) -> bool:
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    return is_integer and bool(value >= least)


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
