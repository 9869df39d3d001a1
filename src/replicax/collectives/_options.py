"""Options of a collective."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import jax.numpy as jnp

from replicax.errors import ArgumentTypeError, InvalidArgumentError, describe

_WIRE_DTYPES = ("bfloat16", "float16", "float32")


class CommunicationImplementation(enum.Enum):
    """The transport that the user asks for.

    XLA chooses the transport of a compiled program itself: NCCL between GPUs, Gloo between
    CPU processes, memory inside a process. The choice is kept so that programs written for
    tf.distribute run unchanged; a strategy refuses NCCL where there are no GPUs.

    Examples:
        >>> CommunicationImplementation.parse("nccl")
        <CommunicationImplementation.NCCL: 'NCCL'>
    """

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"

    @classmethod
    def parse(cls, value: CommunicationImplementation | str) -> CommunicationImplementation:
        """Returns the member that `value` means. Context: any.

        Args:
            value: A member, or its name in any case.

        Raises:
            ArgumentTypeError: `value` is neither a member nor a string.
            InvalidArgumentError: No member has this name.
        """
        if isinstance(value, cls):
            return value
        fix = "pass AUTO, RING or NCCL."
        if not isinstance(value, str):
            raise ArgumentTypeError(describe(_echo("implementation", value), fix=fix))
        if value.upper() not in cls.__members__:
            raise InvalidArgumentError(describe(_echo("implementation", value), fix=fix))
        return cls[value.upper()]


@dataclasses.dataclass(frozen=True)
class CommunicationOptions:
    """Options of a collective. Context: any.

    Attributes:
        bytes_per_pack: Largest number of bytes of one call that travel together. 0 lets the
            library decide by the sizes of the leaves and by what carries them, and join the small
            sums of several calls in a step. Above 0, no call of the step is joined with another.
        timeout_seconds: Longest wait for one replica to reach a collective of the eager
            runner. None waits for ever.
        implementation: A member of `CommunicationImplementation`, or its name in any case.
        wire_dtype: `"bfloat16"` or `"float16"`: float32 arrays travel with half the bytes in
            `all_reduce` and `reduce_scatter` with SUM or MEAN, and are added in float32. Scalars
            and other dtypes travel as they are, as do all values of other collectives. `"float32"`:
            all travel as they are, whatever the strategy's options say. None: as these say.

    Raises:
        ArgumentTypeError: A field has the wrong type.
        InvalidArgumentError: A field is out of range.

    Examples:
        >>> CommunicationOptions(bytes_per_pack=1 << 20, implementation="ring").implementation
        <CommunicationImplementation.RING: 'RING'>
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation = CommunicationImplementation.AUTO
    wire_dtype: str | None = None

    def __post_init__(self) -> None:
        """Checks each field, and turns the name of an implementation into a member."""
        _check_bytes_per_pack(self.bytes_per_pack)
        _check_timeout_seconds(self.timeout_seconds)
        parsed = CommunicationImplementation.parse(self.implementation)
        object.__setattr__(self, "implementation", parsed)
        object.__setattr__(self, "wire_dtype", _checked_wire_dtype(self.wire_dtype))

    def merge(self, other: CommunicationOptions | None) -> CommunicationOptions:
        """Returns these options, changed where `other` is not the default. Context: any.

        Args:
            other: Options that win. None changes nothing.

        Raises:
            ArgumentTypeError: `other` is no `CommunicationOptions`.

        Examples:
            >>> base = CommunicationOptions(bytes_per_pack=1024, timeout_seconds=5.0)
            >>> base.merge(CommunicationOptions(timeout_seconds=9.0)).bytes_per_pack
            1024
        """
        if other is None:
            return self
        if not isinstance(other, CommunicationOptions):
            raise ArgumentTypeError(
                describe(_echo("other", other), fix="pass `rx.CommunicationOptions(...)`.")
            )
        default = CommunicationOptions()
        changed = {
            field.name: getattr(other, field.name)
            for field in dataclasses.fields(other)
            if getattr(other, field.name) != getattr(default, field.name)
        }
        return dataclasses.replace(self, **changed)


def _check_bytes_per_pack(value: object) -> None:
    fix = "pass a number of bytes, or 0 to let the library decide."
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(describe(_echo("bytes_per_pack", value), fix=fix))
    if value < 0:
        raise InvalidArgumentError(
            describe(_echo("bytes_per_pack", value), why="it is negative.", fix=fix)
        )


def _check_timeout_seconds(value: object) -> None:
    if value is None:
        return
    fix = "pass a number of seconds above 0, or None to wait for ever."
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(describe(_echo("timeout_seconds", value), fix=fix))
    if not (math.isfinite(value) and value > 0):
        raise InvalidArgumentError(describe(_echo("timeout_seconds", value), fix=fix))


def _checked_wire_dtype(value: Any) -> str | None:
    """The name of a dtype."""
    if value is None:
        return None
    fix = f"pass one of {', '.join(map(repr, _WIRE_DTYPES))}, or None."
    try:
        name: str = jnp.dtype(value).name
    except TypeError as error:
        raise ArgumentTypeError(describe(_echo("wire_dtype", value), fix=fix)) from error
    if name not in _WIRE_DTYPES:
        raise InvalidArgumentError(describe(_echo("wire_dtype", value), fix=fix))
    return name


def _echo(name: str, value: object) -> str:
    return f"`{name}={value!r}` ({type(value).__name__}) is not accepted."


EXACT = CommunicationOptions(wire_dtype="float32")
"""What the library combines for itself (losses, counts, metrics, statistics) is not rounded."""
