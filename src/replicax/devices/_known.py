"""The devices that are there. Every function here starts jax."""

from __future__ import annotations

import jax

from replicax.errors import (
    ArgumentTypeError,
    UnavailableError,
    UnknownDeviceError,
    describe,
)

from ._hints import hints
from ._spec import DeviceSpec

_ACCELERATORS = ("gpu", "tpu")


def list_devices(device_type: str | None = None) -> list[DeviceSpec]:
    """Lists the devices of this process. Context: any.

    Args:
        device_type: CPU, GPU or TPU in any case; None lists all.

    Returns:
        Full specs: accelerators first, then by index. Empty where there are none.

    Raises:
        ArgumentTypeError: `device_type` is neither a string nor None.
        UnavailableError: jax cannot start its devices.

    Examples:
        >>> print(list_devices("cpu")[1])
        /job:localhost/replica:0/task:0/device:CPU:1
    """
    if not isinstance(device_type, str | None):
        message = describe(
            f"list_devices got device_type={device_type!r} of type {type(device_type).__name__}.",
            fix='pass "CPU", "GPU", "TPU", or None for all.',
        )
        raise ArgumentTypeError(message)
    specs = [spec_of(device) for device in all_devices() if is_local(device)]
    return [s for s in specs if device_type is None or s.device_type == device_type.upper()]


def local_accelerators() -> list[jax.Device]:
    """Returns the GPUs or TPUs of this process; empty where there are none. Context: any.

    Raises:
        UnavailableError: jax cannot start its devices.

    Examples:
        >>> [device.platform for device in local_accelerators() if device.platform == "cpu"]
        []
    """
    return [device for device in all_devices() if is_local(device) and device.platform != "cpu"]


def default_devices() -> list[jax.Device]:
    """Returns the devices of a strategy that is given none. Context: any.

    Returns:
        All accelerators of this process; where there are none, all its logical CPU devices.

    Raises:
        UnavailableError: jax cannot start its devices.

    Examples:
        >>> len(default_devices()) > 0
        True
    """
    return local_accelerators() or [device for device in all_devices() if is_local(device)]


def spec_of(device: jax.Device) -> DeviceSpec:
    """Returns the full spec of a device of jax. Context: any.

    Args:
        device: A device of this process or of another one of the same job.

    Returns:
        The spec with job `localhost`, replica 0, the process index as the task, and the
        position among the devices of its type in its process as the index.

    Raises:
        ArgumentTypeError: `device` is no `jax.Device`.
        UnknownDeviceError: `device` is none of jax's devices.

    Examples:
        >>> print(spec_of(jax.devices("cpu")[0]))
        /job:localhost/replica:0/task:0/device:CPU:0
    """
    if not isinstance(device, jax.Device):
        message = describe(
            f"spec_of got {device!r} of type {type(device).__name__}.",
            fix="pass a jax.Device. DeviceSpec.from_string reads strings.",
        )
        raise ArgumentTypeError(message)
    peers = [
        peer for peer in devices_of(device.platform) if peer.process_index == device.process_index
    ]
    if device not in peers:
        message = describe(
            f"{device!r} is none of the devices that jax has started.",
            why="it belongs to a description of another machine, or to a jax that was ended.",
            fix="take the devices from jax.devices().",
        )
        raise UnknownDeviceError(message)
    kind = device.platform.upper()
    return DeviceSpec("localhost", 0, device.process_index, kind, peers.index(device))


def is_local(device: jax.Device) -> bool:
    """Whether a device is one of this process."""
    return bool(device.process_index == jax.process_index())


def all_devices() -> list[jax.Device]:
    """All devices of all processes that jax knows: accelerators first."""
    platforms = dict.fromkeys([default_platform(), *_ACCELERATORS])
    platforms.pop("cpu", None)
    return [device for platform in [*platforms, "cpu"] for device in devices_of(platform)]


def default_platform() -> str:
    """Name of the platform that jax prefers, such as `gpu`.

    Raises:
        UnavailableError: jax cannot start its devices.
    """
    try:
        return str(jax.devices()[0].platform)
    except RuntimeError as error:
        message = describe(
            f"jax cannot start its devices: {error}",
            why=" ".join(hints(None)) or None,
            fix="check that `python -c 'import jax; print(jax.devices())'` works.",
        )
        raise UnavailableError(message) from error


def devices_of(platform: str) -> list[jax.Device]:
    """The devices of a platform; empty where jax does not have it."""
    try:
        return list(jax.devices(platform))
    except RuntimeError:  # jax has no such platform here.
        return []
