"""How a variable's copies are kept in step."""

from __future__ import annotations

import enum
from typing import Any, Self

from replicax import errors


class _NamedOption(enum.Enum):
    """An option that can also be given by its name, in any case."""

    @classmethod
    def parse(cls, option: Any) -> Self:
        """Return the member that ``option`` is or names.

        Raises:
            InvalidArgumentError: There is no such member.
        """
        if isinstance(option, cls):
            return option
        if isinstance(option, str) and option.upper() in cls.__members__:
            return cls[option.upper()]
        known = ", ".join(member.name for member in cls)
        raise errors.InvalidArgumentError(
            errors.describe(
                f"{option!r} is not a {cls.__name__}.", fix=f"Pass one of {known}, or its name."
            )
        )


class VariableSynchronization(_NamedOption):
    """When the copies of a variable are brought together.

    AUTO: the strategy chooses; ON_WRITE for the strategies here.
    ON_WRITE: every write reaches all copies, so that they stay equal.
    ON_READ: each replica writes its own copy; reading across replicas aggregates them.
    """

    AUTO = "auto"
    ON_WRITE = "on_write"
    ON_READ = "on_read"


class VariableAggregation(_NamedOption):
    """How the values that replicas write are combined.

    NONE: they are not; the replicas must write equal values, which is proved.
    SUM, MEAN: the sum or the mean over the replicas.
    ONLY_FIRST_REPLICA: the value of replica 0.
    """

    NONE = "none"
    SUM = "sum"
    MEAN = "mean"
    ONLY_FIRST_REPLICA = "only_first_replica"
