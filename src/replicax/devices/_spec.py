"""Device specs: the names of devices."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, SupportsIndex

from replicax.errors import ArgumentTypeError, InvalidArgumentError, describe

# The types that have a short form, such as `gpu:1`.
_SHORT_TYPES = frozenset({"CPU", "GPU", "TPU"})
_ANY = "*"
_GRAMMAR = (
    "write the parts /job:NAME, /replica:N, /task:N and /device:TYPE:N in any order, each of them "
    "optional, or in short CPU:N, GPU:N or TPU:N; * as a number leaves it open."
)


@dataclasses.dataclass(frozen=True)
class DeviceSpec:
    """The name of a device, or of several: a part that is None is left open.

    Context: any. Making a spec starts no device.

    Attributes:
        job: Name of the job, such as `worker`. `localhost` is this program without a cluster.
        replica: Index of the replica of the job. 0 everywhere today.
        task: Index of the task in its job.
        device_type: CPU, GPU, TPU or another type. It is turned to upper case.
        device_index: Index of the device among those of its type in its task.

    Raises:
        ArgumentTypeError: A part has the wrong type.
        InvalidArgumentError: A number is negative, a name is empty or has `/`, `:` or `*` in
            it, or there is an index but no type.

    Examples:
        >>> spec = DeviceSpec.from_string("/job:worker/task:1/gpu:0")
        >>> spec.device_type, spec.task
        ('GPU', 1)
        >>> print(spec)
        /job:worker/task:1/device:GPU:0
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    def __post_init__(self) -> None:
        """Checks the parts."""
        for name in ("job", "device_type"):
            _check_name(name, getattr(self, name))
        for name in ("replica", "task", "device_index"):
            object.__setattr__(self, name, _checked_number(name, getattr(self, name)))
        if self.device_type is not None:
            object.__setattr__(self, "device_type", self.device_type.upper())
        elif self.device_index is not None:
            message = describe(
                f"A device spec got device_index={self.device_index} but no device_type.",
                why="an index counts the devices of one type.",
                fix='give the type as well, such as device_type="CPU".',
            )
            raise InvalidArgumentError(message)

    @classmethod
    def from_string(cls, text: str) -> DeviceSpec:
        """Reads a device string.

        A part that is given twice counts as the later one says. Only the type may not be
        given twice.

        Args:
            text: `/job:worker/replica:0/task:1/device:GPU:0`, or a shorter form: `GPU:0`,
                `/cpu:1`, `/task:1/gpu:*`, `tpu`, or the empty string.

        Raises:
            ArgumentTypeError: `text` is no string.
            InvalidArgumentError: There is an unknown part, a second device type, a
                `/device:TYPE` without index, or something else than a number or `*` where a
                number should be.

        Examples:
            >>> DeviceSpec.from_string("cpu:1")
            DeviceSpec(job=None, replica=None, task=None, device_type='CPU', device_index=1)
            >>> print(DeviceSpec.from_string("/job:a/job:b/device:GPU:*"))
            /job:b/device:GPU:*
        """
        if not isinstance(text, str):
            message = describe(
                f"A device string was expected, got {text!r} of type {type(text).__name__}.",
                fix=_GRAMMAR,
            )
            raise ArgumentTypeError(message)
        parts: dict[str, Any] = {}
        for part in filter(None, text.split("/")):
            found = _read_part(text, part)
            if "device_type" in found and "device_type" in parts:
                message = describe(
                    f"The device string {text!r} has two device types: "
                    f"{parts['device_type']} and {found['device_type']}.",
                    why="a spec names devices of one type.",
                    fix="keep one of them.",
                )
                raise InvalidArgumentError(message)
            parts |= found
        return cls(**parts)

    def to_string(self) -> str:
        """Writes the spec so that `from_string` reads the same spec again.

        Examples:
            >>> DeviceSpec(task=1, device_type="gpu").to_string()
            '/task:1/device:GPU:*'
        """
        parts = [
            f"/{name}:{value}"
            for name in ("job", "replica", "task")
            if (value := getattr(self, name)) is not None
        ]
        if self.device_type is not None:
            index = _ANY if self.device_index is None else self.device_index
            parts.append(f"/device:{self.device_type}:{index}")
        return "".join(parts)

    def __str__(self) -> str:
        """The same as `to_string`."""
        return self.to_string()

    def make_merged_spec(self, other: DeviceSpec) -> DeviceSpec:
        """Returns this spec with the parts that `other` has put over it.

        Examples:
            >>> inner = DeviceSpec(device_type="GPU", device_index=0)
            >>> print(DeviceSpec.from_string("/task:1/cpu:3").make_merged_spec(inner))
            /task:1/device:GPU:0
        """
        return self.replace(
            **{name: value for name, value in vars(other).items() if value is not None}
        )

    def replace(self, **parts: Any) -> DeviceSpec:
        """Returns a copy with some parts changed. None leaves a part open.

        Raises:
            ArgumentTypeError: A part does not exist or has the wrong type.
            InvalidArgumentError: As for the constructor.

        Examples:
            >>> print(DeviceSpec.from_string("gpu:0").replace(device_index=1))
            /device:GPU:1
        """
        names = list(vars(self))
        unknown = [name for name in parts if name not in names]
        if unknown:
            message = describe(
                f"A device spec has no part {unknown[0]!r}.",
                fix=f"use one of {', '.join(names)}.",
            )
            raise ArgumentTypeError(message)
        return dataclasses.replace(self, **parts)

    def canonicalise(self, default: DeviceSpec | None = None) -> DeviceSpec:
        """Returns the spec with all parts filled in.

        Args:
            default: Where open parts come from. What is open there as well is filled from
                `/job:localhost/replica:0/task:0/device:CPU:0`.

        Examples:
            >>> print(DeviceSpec.from_string("cpu:1").canonicalise())
            /job:localhost/replica:0/task:0/device:CPU:1
        """
        base = _LOCAL if default is None else _LOCAL.make_merged_spec(default)
        return base.make_merged_spec(self)


def _read_part(text: str, part: str) -> dict[str, Any]:
    """One part of a device string as fields of a spec."""
    match part.split(":"):
        case ["job", name]:
            return {"job": None if name == _ANY else name}
        case ["replica" | "task" as name, number]:
            return {name: _read_number(text, part, number)}
        case ["device", kind, number]:
            return {"device_type": kind.upper(), "device_index": _read_number(text, part, number)}
        case [kind] if kind.upper() in _SHORT_TYPES:
            return {"device_type": kind.upper()}
        case [kind, number] if kind.upper() in _SHORT_TYPES:
            return {"device_type": kind.upper(), "device_index": _read_number(text, part, number)}
        case ["device", kind]:
            message = describe(
                f"The device string {text!r} has a type without an index: {part!r}.",
                fix=f"write /device:{kind}:0, or /device:{kind}:* for any.",
            )
        case _:
            message = describe(
                f"The device string {text!r} has an unknown part: {part!r}.", fix=_GRAMMAR
            )
    raise InvalidArgumentError(message)


def _read_number(text: str, part: str, number: str) -> int | None:
    if number == _ANY:
        return None
    if number.isascii() and number.isdecimal():
        return int(number)
    message = describe(
        f"The device string {text!r} has {number!r} in {part!r} where a number should be.",
        fix="write a whole number from 0, or * to leave it open.",
    )
    raise InvalidArgumentError(message)


def _check_name(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        message = f"{name} of a device spec must be a string or None, got {value!r}."
        raise ArgumentTypeError(message)
    if not value or any(char in "/:*" or char.isspace() for char in value):
        message = describe(
            f"{name} of a device spec cannot be {value!r}.",
            why="it would not be read back from the device string.",
            fix="use letters, digits and underscores, or None to leave it open.",
        )
        raise InvalidArgumentError(message)


def _checked_number(name: str, value: object) -> int | None:
    """The number as a plain int: numpy's integers are welcome."""
    if value is None:
        return None
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        message = f"{name} of a device spec must be a whole number or None, got {value!r}."
        raise ArgumentTypeError(message)
    number = operator.index(value)
    if number < 0:
        message = describe(
            f"{name} of a device spec is {number}.", why="devices and tasks are counted from 0."
        )
        raise InvalidArgumentError(message)
    return number


_LOCAL = DeviceSpec("localhost", 0, 0, "CPU", 0)
