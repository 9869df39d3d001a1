"""How long a job of several workers waits, and for what."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from replicax.errors import ArgumentTypeError, InvalidArgumentError, describe

BEACON_INTERVAL_S = 0.25
"""A worker tells its master this often that it is alive."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long a job of several workers waits before it names who is missing. Context: any.

    All are in seconds.

    | field | waits for | after that | default |
    |---|---|---|---|
    | `start` | all workers to come, from the start of the first | each one there raises `StartupError`, with the missing workers' addresses | 120 |
    | `collective` | one collective, compiling included | the engine gives up: `CollectiveTimeoutError` | 300 |
    | `beacon` | a sign of life of a worker; one is sent every 0.25 s, by a thread of its own | the worker counts as frozen or cut off: `WorkerFailedError` on all others | 2 |
    | `stall` | the next step of a worker whose peers wait for it | the worker counts as stalled: `WorkerFailedError`. None: it is reported, and waited for up to `collective` | None |
    | `shutdown` | a worker to leave after a failure, or after SIGTERM | it is killed | 10 |

    A first step that compiles for long is no failure below `collective`.

    Raises:
        ArgumentTypeError: A field is no number.
        InvalidArgumentError: A field is not finite or not above 0, or `beacon` is below 0.5.

    Examples:
        >>> Timeouts(start=30, stall=60).stall
        60.0
        >>> Timeouts.from_json(Timeouts(beacon=5).to_json()) == Timeouts(beacon=5)
        True
    """  # noqa: E501 - a row of a table is one line

    start: float = 120.0
    collective: float = 300.0
    beacon: float = 2.0
    stall: float | None = None
    shutdown: float = 10.0

    def __post_init__(self) -> None:
        """Checks each field, and makes it a float."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "stall" and value is None:
                continue
            object.__setattr__(self, field.name, _checked(field.name, value))
        if self.beacon < 2 * BEACON_INTERVAL_S:
            raise InvalidArgumentError(
                describe(
                    f"rx.Timeouts got beacon={self.beacon}.",
                    why=f"a sign of life is sent every {BEACON_INTERVAL_S} s, so a shorter "
                    "time-out would take a healthy worker for a frozen one.",
                    fix=f"pass beacon={2 * BEACON_INTERVAL_S} or more.",
                )
            )

    def to_json(self) -> dict[str, float | None]:
        """Returns the fields as JSON can hold them. Context: any.

        Examples:
            >>> Timeouts().to_json()["shutdown"]
            10.0
        """
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Timeouts:
        """Returns the time-outs that `to_json` made `fields` of. Context: any.

        Args:
            fields: Some or all of the fields; the others get their defaults.

        Raises:
            ArgumentTypeError: `fields` is no mapping, or a field is no number.
            InvalidArgumentError: A name is unknown, or a value is out of range.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(fields, Mapping):
            raise ArgumentTypeError(
                describe(
                    f"rx.Timeouts.from_json got {fields!r} ({type(fields).__name__}).",
                    fix=f"pass a mapping with some of the names {', '.join(names)}.",
                )
            )
        unknown = sorted(set(fields) - set(names))
        if unknown:
            raise InvalidArgumentError(
                describe(
                    f"There is no time-out with the name {unknown[0]!r}.",
                    fix=f"use some of the names {', '.join(names)}.",
                )
            )
        return cls(**fields)


def _checked(name: str, value: object) -> float:
    asked = f"rx.Timeouts got {name}={value!r} ({type(value).__name__})."
    fix = f"pass a number of seconds above 0, such as {name}={getattr(Timeouts, name) or 60.0}."
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(describe(asked, fix=fix))
    if not (math.isfinite(value) and value > 0):
        raise InvalidArgumentError(describe(asked, fix=fix))
    return float(value)
