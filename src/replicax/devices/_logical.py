"""Logical CPU devices: several replicas on a machine without accelerators."""

from __future__ import annotations

import operator
import os
import re

import jax

from replicax.errors import (
    ArgumentTypeError,
    DevicesStartedError,
    InvalidArgumentError,
    call_site,
    describe,
)

ENVIRONMENT_NAME = "REPLICAX_CPU_DEVICES"
_SETTING = "jax_num_cpu_devices"
_XLA_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def logical(cpu: int) -> None:
    """Splits the CPU into logical devices. Context: any, before the first use of jax.

    The call starts nothing. The same number again is a no-op at any time.

    Args:
        cpu: Number of logical CPU devices of this process, from 1.

    Raises:
        ArgumentTypeError: `cpu` is no whole number.
        InvalidArgumentError: `cpu` is below 1, or `XLA_FLAGS` asks for another number.
        DevicesStartedError: jax has started with another number of CPU devices.

    Examples:
        >>> logical(cpu=8)
        >>> len(jax.devices("cpu"))
        8
    """
    _set_count(_checked(cpu), f"rx.devices.logical(cpu={cpu})")


def apply_environment() -> None:
    """Applies `REPLICAX_CPU_DEVICES`, where it is set. Context: any; starts nothing.

    `import replicax` calls it.

    Raises:
        InvalidArgumentError: The value is no whole number from 1, or `XLA_FLAGS` asks for
            another number.
        DevicesStartedError: jax has started with another number of CPU devices.

    Examples:
        >>> apply_environment()
    """
    text = os.environ.get(ENVIRONMENT_NAME, "").strip()
    if not text:
        return
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        message = describe(
            f"The environment has {ENVIRONMENT_NAME}={text!r}.",
            why="it is the number of logical CPU devices: a whole number from 1.",
            fix=f"set {ENVIRONMENT_NAME}=4, for example, or unset it.",
        )
        raise InvalidArgumentError(message)
    _set_count(int(text), f"{ENVIRONMENT_NAME}={text}")


def _checked(cpu: object) -> int:
    """The argument as a number."""
    try:
        count = operator.index(cpu)  # type: ignore[arg-type]
    except TypeError:
        count = None
    if count is None or isinstance(cpu, bool):
        message = describe(
            f"rx.devices.logical got cpu={cpu!r} of type {type(cpu).__name__}.",
            fix="pass a whole number from 1, such as rx.devices.logical(cpu=4).",
        )
        raise ArgumentTypeError(message)
    if count < 1:
        message = describe(
            f"rx.devices.logical got cpu={cpu!r}.",
            why="jax needs at least one CPU device.",
            fix="pass a whole number from 1.",
        )
        raise InvalidArgumentError(message)
    return count


def _set_count(count: int, asked: str) -> None:
    """Sets the number of CPU devices; `asked` is how the user wrote it."""
    if getattr(jax.config, _SETTING) == count:
        return
    _check_xla_flags(count, asked)
    try:
        jax.config.update(_SETTING, count)
    except RuntimeError as error:
        # jax refuses another value once its devices have started.
        started = _started_count()
        if started == count:  # The same number came another way, such as XLA_FLAGS.
            return
        site = call_site()
        here = f"the line {site}" if site is not None else "it"
        message = describe(
            f"{asked} came too late: jax has started with {started} CPU device(s).",
            why="the number of logical devices is fixed when jax is first used: by "
            "jax.devices(), by making an array, or by anything that runs on a device.",
            fix=f"move {here} above the first use of jax, or set {ENVIRONMENT_NAME}={count} "
            "before Python starts.",
        )
        raise DevicesStartedError(message) from error


def _started_count() -> int:
    """Number of CPU devices of a jax that has started."""
    try:
        return len(jax.local_devices(backend="cpu"))
    except RuntimeError:  # jax was told to start without its CPU platform.
        return 0


def _check_xla_flags(count: int, asked: str) -> None:
    """Refuses a number that contradicts the flag: which of them counts is jax's secret."""
    found = _XLA_FLAG.findall(os.environ.get("XLA_FLAGS", ""))
    if not found or int(found[-1]) == count:
        return
    message = describe(
        f"{asked} and XLA_FLAGS disagree on the number of CPU devices: XLA_FLAGS has "
        f"--xla_force_host_platform_device_count={found[-1]}.",
        why="both set the number of logical CPU devices of this process.",
        fix="remove the flag from XLA_FLAGS, or ask for the same number.",
    )
    raise InvalidArgumentError(message)
